// SPDX-License-Identifier: Apache-2.0
// The numbers of this build, as functions: a caller may have been compiled against other headers.
//
// Thread rule: pure functions.
#include "kvstrata/c_api.h"

#define KVSTRATA_TEXT_OF(number) #number
#define KVSTRATA_TEXT(number) KVSTRATA_TEXT_OF(number)

extern "C" {

uint32_t kvstrata_abi_version(void) { return KVSTRATA_ABI_VERSION; }

uint32_t kvstrata_format_version(void) { return KVSTRATA_FORMAT_VERSION; }

const char* kvstrata_version_string(void) {
  return KVSTRATA_TEXT(KVSTRATA_VERSION_MAJOR) "." KVSTRATA_TEXT(KVSTRATA_VERSION_MINOR) "." KVSTRATA_TEXT(
      KVSTRATA_VERSION_PATCH);
}

}  // extern "C"
