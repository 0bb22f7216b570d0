/* SPDX-License-Identifier: Apache-2.0 */
/* Asks libkvstrata_cuda for its kernels. Where no device is, the answer must be a status with a sentence, and the core
 * goes on as if nothing had been. */
#include "kvstrata/cuda.h"

#include <stdio.h>
#include <string.h>

#include "kvstrata/c_api.h"

static int failures = 0;
#define CHECK(holds) \
  if (!(holds) && ++failures) printf("line %d: not so: %s\n", __LINE__, #holds)

int main(void) {
  kvstrata_error error;
  const kvstrata_kernels* kernels = NULL;
  kvstrata_status status;
  kvstrata_device device;
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  status = kvstrata_cuda_available(0, &error);
  printf("%s: %s\n", kvstrata_status_name(status), status == KVSTRATA_OK ? "there is a device" : error.message);
  CHECK(status == KVSTRATA_OK || status == KVSTRATA_E_UNSUPPORTED);
  CHECK(kvstrata_cuda_available(0, NULL) == status);
  CHECK(kvstrata_cuda_kernels(0, &kernels, &error) == status);
  if (status == KVSTRATA_OK) {
    CHECK(kernels != NULL && strcmp(kernels->name, "cuda") == 0);
    CHECK(kvstrata_cuda_kernels(-1, &kernels, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  } else {
    CHECK(kernels == NULL);
    CHECK(error.code == status && strcmp(error.field, "device_id") == 0);
    CHECK(strlen(error.message) > 20 && strstr(error.message, "driver") != NULL);
  }
  CHECK(kvstrata_cuda_kernels(0, NULL, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  memset(&device, 0, sizeof device);
  device.struct_size = sizeof device;
  CHECK(kvstrata_cuda_device(0, NULL, &device, &error) == status);
  CHECK((device.ctx != NULL) == (status == KVSTRATA_OK));
  if (device.destroy != NULL) device.destroy(device.ctx);
  CHECK(kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_AUTO) != NULL);
  return failures == 0 ? 0 : 1;
}
