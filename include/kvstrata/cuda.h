/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstrata/cuda.h - what libkvstrata_cuda gives an engine on NVIDIA GPUs: the table of kernels, and the device through
 * which a cache restores into, and stores from, device memory. C99.
 *
 * A library of its own, so that the core needs no driver: libkvstrata neither links nor loads it. It contains CUDA's
 * run-time library and loads the driver when it is first asked for a device; where there is none, that is a status
 * with a sentence that says what is missing. It makes no thread.
 *
 *   kvstrata_error error = {.struct_size = sizeof error};
 *   const kvstrata_kernels* kernels = NULL;
 *   if (kvstrata_cuda_kernels(0, &kernels, &error) != KVSTRATA_OK) puts(error.message);
 *
 * Devices are numbered as CUDA numbers them. Streams are cudaStream_t of the run-time API; CUstream is the same type.
 */
#ifndef KVSTRATA_CUDA_H
#define KVSTRATA_CUDA_H

#include "kvstrata/c_api.h"
#include "kvstrata/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether device `device_id` can be used. KVSTRATA_E_UNSUPPORTED: there is no driver, it is too old for this library,
 * it has no device, or the device is older than compute capability 8.0; error.message says which.
 * KVSTRATA_E_INVALID_ARGUMENT: a number that no device has. KVSTRATA_E_DEVICE: the driver failed; native_code is its
 * cudaError_t. `error` may be NULL. Any thread; the calling thread's current device stays what it was. */
KVSTRATA_API kvstrata_status kvstrata_cuda_available(int32_t device_id, kvstrata_error* error);

/* The table of <kvstrata/kernels.h> whose functions queue their work on `stream`, a cudaStream_t of the device that is
 * current for the calling thread, and do not wait for it. Pointers in argument structs are device pointers, but for
 * the structs themselves and a move's `segments`, which are read before the call returns. What lies in device memory
 * cannot be looked at first: a page id that is negative or not below page_limit skips its row, and a pick that is no
 * visible entry its place, where the other levels refuse the call.
 *
 * `*out_kernels` is of static lifetime and the same for all devices. Errors as above, and *out_kernels untouched. */
KVSTRATA_API kvstrata_status kvstrata_cuda_kernels(int32_t device_id, const kvstrata_kernels** out_kernels,
                                                   kvstrata_error* error);

/* A status of the device's functions that is neither KVSTRATA_OK nor a KVSTRATA_E_* is this and a cudaError_t. The
 * cache's error has it as native_code. */
enum { KVSTRATA_CUDA_STATUS_BASE = 1000 };

typedef struct kvstrata_cuda_device_options {
  uint32_t struct_size;
  uint32_t flags;        /* none yet: 0                                                                            */
  uint64_t pinned_bytes; /* bound of pinned host memory, made in slabs when it is wanted and kept until `destroy`;
                            more than the cache's staging_bytes leaves room for gaps; 0 = 256 MiB                  */
} kvstrata_cuda_device_options;

/* Fills `*out_device` (struct_size set by the caller) with a device for kvstrata_cache_options. Restores and appends
 * then take KVSTRATA_MEMORY_DEVICE buffers of any GPU of this process, and as `stream` a cudaStream_t of it (NULL: the
 * legacy default stream): what the engine has queued there before, reading the same pages, is done first. Not
 * cudaStreamPerThread, which is another stream in each thread, and the cache's threads do the queueing: it is refused.
 * A call moves long rows by the copy engines and all others by one launch, which reads or writes the pinned memory
 * itself.
 *
 * The cache takes the device over when it opens well, and destroys it; else out_device->destroy(out_device->ctx) does.
 * `device_id` is the device that is asked for, errors as for kvstrata_cuda_available; `options` may be NULL. On failure
 * nothing is written but `error`. The table's functions: any thread, and the thread's current device stays. */
KVSTRATA_API kvstrata_status kvstrata_cuda_device(int32_t device_id, const kvstrata_cuda_device_options* options,
                                                  kvstrata_device* out_device, kvstrata_error* error);

/* Projections by cuBLAS: what the table's `project` computes, faster, with sums in whatever order cuBLAS takes, so that
 * a row's last bits may depend on how many rows a call has. Who wants the same bits always uses the table's own.
 *
 * cuBLAS is loaded when the first projector is made: libcublas.so.13, else .12. A projector is for one device, and is
 * used by one thread at a time. */
typedef struct kvstrata_cuda_projector kvstrata_cuda_projector;

enum { KVSTRATA_CUDA_PROJECTOR_TF32 = 1 /* fp32 factors may be rounded to TF32, for the tensor cores */ };

typedef struct kvstrata_cuda_projector_options {
  uint32_t struct_size;
  uint32_t flags; /* KVSTRATA_CUDA_PROJECTOR_* */
} kvstrata_cuda_projector_options;

/* Makes a projector for the device that is current for the calling thread; allocates memory of that device, and waits
 * for it. KVSTRATA_E_UNSUPPORTED: the device cannot be used (as above), or there is no cuBLAS; KVSTRATA_E_DEVICE:
 * cuBLAS failed, native_code is its cublasStatus_t. `options` and `error` may be NULL; *out_projector is only written
 * on success, and the caller destroys it. */
KVSTRATA_API kvstrata_status kvstrata_cuda_projector_create(const kvstrata_cuda_projector_options* options,
                                                            kvstrata_cuda_projector** out_projector,
                                                            kvstrata_error* error);

/* The work that it has queued is done, and its device is the current one. NULL: nothing. */
KVSTRATA_API void kvstrata_cuda_projector_destroy(kvstrata_cuda_projector* projector);

/* What `project` needs for args of these shapes and types: up to 32 MiB for cuBLAS. Where one of x and weights is bf16
 * and the other fp32, room to widen the bf16 one on top, which then happens in each call. */
KVSTRATA_API kvstrata_status kvstrata_cuda_projector_workspace_bytes(const kvstrata_cuda_projector* projector,
                                                                     const kvstrata_project_args* args,
                                                                     uint64_t* out_bytes, kvstrata_error* error);

/* Queues the product on `stream`, a cudaStream_t of the projector's device, which is the calling thread's current one,
 * and does not wait; pointers in `args` are device pointers. Nothing is allocated. What is wrong with the arguments is
 * told before anything is queued; on KVSTRATA_E_DEVICE y may have been written. */
KVSTRATA_API kvstrata_status kvstrata_cuda_projector_project(kvstrata_cuda_projector* projector,
                                                             const kvstrata_project_args* args, void* stream,
                                                             kvstrata_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
