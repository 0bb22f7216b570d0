/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's own shared library that holds the static kvstrata and shows nothing of it. */
#include "kvstrata/c_api.h"

__attribute__((visibility("default"))) const char* plugin_cache_version(void);

const char* plugin_cache_version(void) { return kvstrata_version_string(); }
