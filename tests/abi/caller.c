/* SPDX-License-Identifier: Apache-2.0 */
/* A program built against the headers of another release: built three times, with the headers that callers.py makes
 * (older: every size-first struct shorter; newer: longer) and with today's, and linked with today's library each time.
 *
 * Each struct is tried on its own, in memory that ends where it ends: a byte more, read or written, is the end of the
 * program. A struct without a try_NAME function does not link. All of it then works together: rows are stored through
 * a storage of the caller's own and restored, one stream into a device's memory.
 */
#include "kvstrata/c_api.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kvstrata/kernels.h"
#include "structs.h"

enum { ROW_BYTES = 32, BLOCK = 16, TOKENS = 4 * BLOCK, PAGE = 4096, SPAN = 4 * PAGE, RECORDS = 64 };
enum { FILLER = 0xcc };

static int failures = 0;
static const char* trying = "";

static void check(int holds, const char* what, int line) {
  if (holds) return;
  failures += 1;
  printf("%s: line %d: not so: %s\n", trying, line, what);
}
#define CHECK(holds) check((holds) != 0, #holds, __LINE__)

/* ------------------------------------------------------------------------------------------------------------------
 * Memory that ends with its last byte.
 */

/* `size` bytes of `fill`; what lies behind cannot be touched. */
static void* place(size_t size, int fill) {
  unsigned char* base = mmap(NULL, SPAN + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || size > SPAN || mprotect(base + SPAN, PAGE, PROT_NONE) != 0) exit(2);
  memset(base + SPAN - size, fill, size);
  return base + SPAN - size;
}

static void unplace(void* memory, size_t size) { munmap((unsigned char*)memory + size - SPAN, SPAN + PAGE); }

static uint32_t size_of(const void* value) {
  uint32_t size;
  memcpy(&size, value, sizeof size);
  return size;
}

static void set_size(void* value, size_t size) {
  const uint32_t given = (uint32_t)size;
  memcpy(value, &given, sizeof given);
}

/* ------------------------------------------------------------------------------------------------------------------
 * One struct at a time. `mine` is its size in these headers, `today` in the library.
 */
typedef kvstrata_status (*call_fn)(void* value, kvstrata_error* error);

/* `good` is accepted; with members that the library does not know, as long as they are zero. */
static void try_input(const void* good, size_t mine, size_t today, const char* field, call_fn call) {
  kvstrata_error error;
  unsigned char* value = place(mine, 0);
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  memcpy(value, good, mine);
  set_size(value, mine);
  CHECK(call(value, &error) == KVSTRATA_OK);
  for (size_t at = today; at < mine; ++at) {
    value[at] = 1;
    CHECK(call(value, &error) == KVSTRATA_E_STRUCT_TOO_NEW);
    CHECK(strcmp(error.field, field) == 0);
    value[at] = 0;
  }
  CHECK(call(value, &error) == KVSTRATA_OK);
  unplace(value, mine);
}

/* What the library writes is what it writes for a caller of its own age, as far as this one knows it; its surplus is
 * zeroed, its size kept. `expected` is the call's status. */
static void try_output(size_t mine, size_t today, kvstrata_status expected, call_fn call) {
  unsigned char* usual = place(today, FILLER);
  unsigned char* value = place(mine, FILLER);
  const size_t common = mine < today ? mine : today;
  set_size(usual, today);
  set_size(value, mine);
  CHECK(call(usual, (kvstrata_error*)usual) == expected);
  CHECK(call(value, (kvstrata_error*)value) == expected);
  CHECK(size_of(value) == mine);
  CHECK(memcmp(value + sizeof(uint32_t), usual + sizeof(uint32_t), common - sizeof(uint32_t)) == 0);
  for (size_t at = today; at < mine; ++at) CHECK(value[at] == 0);
  unplace(usual, today);
  unplace(value, mine);
}

/* Two elements, `mine` bytes apart, told by the stride and by the first one's size. */
typedef kvstrata_status (*array_fn)(const void* elements, uint64_t stride, kvstrata_error* error);

static void try_array(const void* first, const void* second, size_t mine, size_t today, const char* name,
                      array_fn call) {
  kvstrata_error error;
  char field[80];
  unsigned char* elements = place(2 * mine, 0);
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  memcpy(elements, first, mine);
  memcpy(elements + mine, second, mine);
  set_size(elements, mine);
  set_size(elements + mine, mine);
  CHECK(call(elements, mine, &error) == KVSTRATA_OK);
  CHECK(call(elements, 0, &error) == KVSTRATA_OK);
  snprintf(field, sizeof field, "%s[1]", name);
  for (size_t at = today; at < mine; ++at) {
    elements[mine + at] = 1;
    CHECK(call(elements, mine, &error) == KVSTRATA_E_STRUCT_TOO_NEW);
    CHECK(strcmp(error.field, field) == 0);
    elements[mine + at] = 0;
  }
  unplace(elements, 2 * mine);
}

/* ------------------------------------------------------------------------------------------------------------------
 * A storage, a device and an allocator of the caller's own. What the library hands them is as long as the library says.
 */
typedef struct {
  int used;
  kvstrata_key key;
  unsigned char *payload, *meta;
  uint64_t payload_size, meta_size;
} record;

static pthread_mutex_t storage_lock = PTHREAD_MUTEX_INITIALIZER;
static record records[RECORDS];
static uint32_t request_size = 0, entry_size = 0, copy_size = 0;

static record* find(const kvstrata_key* key) {
  for (int i = 0; i < RECORDS; ++i) {
    if (records[i].used && memcmp(&records[i].key, key, sizeof *key) == 0) return &records[i];
  }
  return NULL;
}

static void forget(record* one) {
  free(one->payload);
  free(one->meta);
  memset(one, 0, sizeof *one);
}

static kvstrata_status put(const kvstrata_storage_request* request) {
  record* one = find(&request->key);
  uint64_t at = 0;
  if (one != NULL) forget(one);
  for (int i = 0; i < RECORDS && one == NULL; ++i) one = records[i].used ? NULL : &records[i];
  if (one == NULL) return KVSTRATA_E_NO_SPACE;
  for (uint64_t i = 0; i < request->part_count; ++i) one->payload_size += request->parts[i].size;
  one->payload = malloc(one->payload_size + 1);
  one->meta = malloc(request->meta_size + 1);
  if (one->payload == NULL || one->meta == NULL) exit(2);
  for (uint64_t i = 0; i < request->part_count; at += request->parts[i].size, ++i) {
    memcpy(one->payload + at, request->parts[i].data, request->parts[i].size);
  }
  memcpy(one->meta, request->meta, request->meta_size);
  one->meta_size = request->meta_size;
  one->key = request->key;
  one->used = 1;
  return KVSTRATA_OK;
}

static kvstrata_status get(const kvstrata_storage_request* request) {
  const record* one = find(&request->key);
  if (one == NULL) return KVSTRATA_E_NOT_FOUND;
  if (request->offset + request->size > one->payload_size) return KVSTRATA_E_CORRUPT;
  memcpy(request->destination, one->payload + request->offset, request->size);
  return KVSTRATA_OK;
}

static kvstrata_status storage_submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count,
                                      uint64_t stride) {
  (void)ctx;
  for (uint64_t i = 0; i < count; ++i) {
    const kvstrata_storage_request* request =
        (const kvstrata_storage_request*)((const unsigned char*)requests + i * stride);
    pthread_mutex_lock(&storage_lock);
    request_size = request->struct_size;
    const kvstrata_status status = request->kind == KVSTRATA_STORAGE_PUT ? put(request) : get(request);
    pthread_mutex_unlock(&storage_lock);
    request->complete(request->user, status, request->size, 0);
  }
  return KVSTRATA_OK;
}

static kvstrata_status storage_stat(void* ctx, const kvstrata_key* key, int32_t* out_exists, uint64_t* out_bytes) {
  (void)ctx;
  pthread_mutex_lock(&storage_lock);
  const record* one = find(key);
  *out_exists = one != NULL;
  *out_bytes = one != NULL ? one->payload_size : 0;
  pthread_mutex_unlock(&storage_lock);
  return KVSTRATA_OK;
}

static kvstrata_status storage_remove(void* ctx, const kvstrata_key* key) {
  (void)ctx;
  pthread_mutex_lock(&storage_lock);
  record* one = find(key);
  if (one != NULL) forget(one);
  pthread_mutex_unlock(&storage_lock);
  return KVSTRATA_OK;
}

static kvstrata_status storage_list(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                                    uint64_t stride, uint64_t* out_count) {
  uint64_t at = *cursor, count = 0;
  (void)ctx;
  pthread_mutex_lock(&storage_lock);
  for (; at < RECORDS && count < capacity; ++at) {
    if (!records[at].used) continue;
    kvstrata_storage_entry* entry = (kvstrata_storage_entry*)((unsigned char*)entries + count * stride);
    entry_size = entry->struct_size;
    entry->key = records[at].key;
    entry->meta_size = (uint32_t)records[at].meta_size;
    entry->payload_bytes = records[at].payload_size;
    entry->stored_bytes = records[at].payload_size + records[at].meta_size;
    memcpy(entry->meta, records[at].meta, records[at].meta_size);
    count += 1;
  }
  pthread_mutex_unlock(&storage_lock);
  *cursor = at < RECORDS ? at : 0;
  *out_count = count;
  return KVSTRATA_OK;
}

static kvstrata_storage own_storage(void) {
  kvstrata_storage table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.abi_version = KVSTRATA_ABI_VERSION;
  table.submit = storage_submit;
  table.stat = storage_stat;
  table.remove = storage_remove;
  table.list = storage_list;
  return table;
}

static void* allocate(void* ctx, uint64_t size, uint64_t alignment) {
  void* out = NULL;
  (void)ctx;
  return posix_memalign(&out, alignment < sizeof(void*) ? sizeof(void*) : alignment, size) == 0 ? out : NULL;
}

static void release(void* ctx, void* memory, uint64_t size, uint64_t alignment) {
  (void)ctx;
  (void)size;
  (void)alignment;
  free(memory);
}

static void* allocate_pinned(void* ctx, int32_t device_id, uint64_t size, uint64_t alignment) {
  (void)device_id;
  return allocate(ctx, size, alignment);
}

static void release_pinned(void* ctx, int32_t device_id, void* memory, uint64_t size) {
  (void)device_id;
  release(ctx, memory, size, 0);
}

static kvstrata_status device_copy(void* ctx, int32_t device_id, void* stream, int32_t direction, void* host,
                                   void* device_base, const kvstrata_copy* copies, uint64_t count, uint64_t stride) {
  (void)ctx;
  (void)device_id;
  (void)stream;
  for (uint64_t i = 0; i < count; ++i) {
    const kvstrata_copy* one = (const kvstrata_copy*)((const unsigned char*)copies + i * stride);
    copy_size = one->struct_size;
    for (uint64_t run = 0; run < one->count; ++run) {
      unsigned char* here = (unsigned char*)host + one->host_offset + run * one->host_stride;
      unsigned char* there = (unsigned char*)device_base + one->device_offset + run * one->device_stride;
      memcpy(direction == KVSTRATA_TO_DEVICE ? there : here, direction == KVSTRATA_TO_DEVICE ? here : there, one->size);
    }
  }
  return KVSTRATA_OK;
}

static kvstrata_status device_record(void* ctx, int32_t device_id, void* stream, void** out_event) {
  (void)ctx;
  (void)device_id;
  (void)stream;
  *out_event = &copy_size;
  return KVSTRATA_OK;
}

static kvstrata_status device_wait(void* ctx, int32_t device_id, void* event, uint64_t timeout_ms) {
  (void)ctx;
  (void)device_id;
  (void)event;
  (void)timeout_ms;
  return KVSTRATA_OK;
}

static void device_release_event(void* ctx, int32_t device_id, void* event) {
  (void)ctx;
  (void)device_id;
  (void)event;
}

static kvstrata_device own_device(void) {
  kvstrata_device table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.abi_version = KVSTRATA_ABI_VERSION;
  table.allocate_pinned = allocate_pinned;
  table.release_pinned = release_pinned;
  table.copy = device_copy;
  table.record = device_record;
  table.wait = device_wait;
  table.release_event = device_release_event;
  return table;
}

static kvstrata_allocator own_allocator(void) {
  kvstrata_allocator table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.allocate = allocate;
  table.release = release;
  return table;
}

/* ------------------------------------------------------------------------------------------------------------------
 * What all structs are tried in: a model of two streams of rows, and a prompt of which four blocks are stored.
 */
#define ZERO(type, name)         \
  type name;                     \
  memset(&name, 0, sizeof name); \
  name.struct_size = sizeof name

static kvstrata_storage storage_table;
static kvstrata_device device_table;
static kvstrata_allocator allocator_table;
static kvstrata_cache* cache = NULL;
static kvstrata_layout* layout = NULL;
static kvstrata_namespace* name_space = NULL;
static kvstrata_match* match = NULL;
static kvstrata_plan* plan = NULL;
static kvstrata_writer* writer = NULL;
static kvstrata_pin* pin = NULL;
static int32_t ids[TOKENS + 1];
static unsigned char rows[2][TOKENS * ROW_BYTES], restored[2][TOKENS * ROW_BYTES];

static kvstrata_stream stream_of(int32_t role) {
  ZERO(kvstrata_stream, stream);
  stream.kind = KVSTRATA_STREAM_ROWS;
  stream.role = role;
  stream.ratio = 1;
  stream.row_bytes = ROW_BYTES;
  stream.packing = KVSTRATA_PACKING_RAW;
  return stream;
}

static kvstrata_identity_field field_of(const char* name) {
  ZERO(kvstrata_identity_field, field);
  field.name = name;
  field.bytes = name;
  return field;
}

static kvstrata_buffer buffer_of(uint32_t stream, unsigned char* base, int32_t memory) {
  ZERO(kvstrata_buffer, buffer);
  buffer.stream = stream;
  buffer.memory = memory;
  buffer.base = base;
  buffer.size_bytes = TOKENS * ROW_BYTES;
  return buffer;
}

static kvstrata_tokens tokens_of(uint64_t count) {
  ZERO(kvstrata_tokens, tokens);
  tokens.ids = ids;
  tokens.count = count;
  return tokens;
}

static kvstrata_cache_options options_of_cache(void) {
  ZERO(kvstrata_cache_options, options);
  options.capacity_bytes = 1 << 20;
  options.storage = &storage_table;
  options.device = &device_table;
  options.allocator = &allocator_table;
  return options;
}

static kvstrata_status open_with(const kvstrata_cache_options* options, kvstrata_error* error) {
  kvstrata_cache* out = NULL;
  const kvstrata_status status = kvstrata_cache_open(options, &out, error);
  kvstrata_cache_destroy(out);
  return status;
}

/* ------------------------------------------------------------------------------------------------------------------
 * try_NAME for each struct of c_api.h, in the order of the header.
 */
static kvstrata_status fail(void* value, kvstrata_error* error) {
  (void)value;
  return kvstrata_layout_from_preset("no such model", NULL, &layout, error);
}
static void try_kvstrata_error(size_t mine, size_t today) { try_output(mine, today, KVSTRATA_E_NOT_FOUND, fail); }

/* The stride is the last member of the struct that it stands in: an older caller does not have it. */
#ifdef OLDER_CALLER
#define SET_STRIDE(member) (void)stride
#else
#define SET_STRIDE(member) (member) = stride
#endif

static kvstrata_status create_from(const void* desc, kvstrata_error* error) {
  kvstrata_layout* out = NULL;
  const kvstrata_status status = kvstrata_layout_create(desc, &out, error);
  kvstrata_layout_destroy(out);
  return status;
}
static kvstrata_status create_with(const void* streams, uint64_t stride, kvstrata_error* error) {
  ZERO(kvstrata_layout_desc, desc);
  desc.block_tokens = BLOCK;
  desc.streams = streams;
  desc.stream_count = 2;
  SET_STRIDE(desc.stream_stride);
  return create_from(&desc, error);
}
static kvstrata_status get_stream(void* value, kvstrata_error* error) {
  (void)error;
  return kvstrata_layout_get_stream(layout, 1, value, NULL);
}
static void try_kvstrata_stream(size_t mine, size_t today) {
  const kvstrata_stream key = stream_of(KVSTRATA_ROLE_KEY), value = stream_of(KVSTRATA_ROLE_VALUE);
  try_array(&key, &value, mine, today, "desc.streams", create_with);
  try_output(mine, today, KVSTRATA_OK, get_stream);
}
static kvstrata_status create(void* value, kvstrata_error* error) { return create_from(value, error); }
static void try_kvstrata_layout_desc(size_t mine, size_t today) {
  kvstrata_stream streams[2] = {stream_of(KVSTRATA_ROLE_KEY), stream_of(KVSTRATA_ROLE_VALUE)};
  ZERO(kvstrata_layout_desc, desc);
  desc.block_tokens = BLOCK;
  desc.streams = streams;
  desc.stream_count = 2;
  try_input(&desc, mine, today, "desc", create);
}

static kvstrata_status from_preset(void* value, kvstrata_error* error) {
  kvstrata_layout* out = NULL;
  const kvstrata_status status = kvstrata_layout_from_preset("deepseek-v4-flash", value, &out, error);
  kvstrata_layout_destroy(out);
  return status;
}
static void try_kvstrata_preset_options(size_t mine, size_t today) {
  ZERO(kvstrata_preset_options, options);
  try_input(&options, mine, today, "options", from_preset);
}

/* Outputs: `error` is the struct itself, which try_output hands out for the sake of kvstrata_error alone. */
#define OUTPUT(name, call)                                                 \
  static kvstrata_status fill_##name(void* value, kvstrata_error* error) { \
    (void)error;                                                           \
    return call;                                                           \
  }                                                                        \
  static void try_##name(size_t mine, size_t today) { try_output(mine, today, KVSTRATA_OK, fill_##name); }

static kvstrata_status open_and_close(void* value) {
  kvstrata_cache* out = NULL;
  ZERO(kvstrata_cache_options, options);
  options.capacity_bytes = 1 << 20;
  kvstrata_status status = kvstrata_cache_open(&options, &out, NULL);
  if (status == KVSTRATA_OK) status = kvstrata_cache_close(out, 0, value, NULL);
  kvstrata_cache_destroy(out);
  return status;
}

OUTPUT(kvstrata_layout_info, kvstrata_layout_get_info(layout, value, NULL))
OUTPUT(kvstrata_stats, kvstrata_cache_stats(cache, value, NULL))
OUTPUT(kvstrata_verify_info, kvstrata_cache_verify(cache, NULL, NULL, value, NULL))
OUTPUT(kvstrata_namespace_info, kvstrata_namespace_get_info(name_space, value, NULL))
OUTPUT(kvstrata_match_info, kvstrata_match_get_info(match, value, NULL))
OUTPUT(kvstrata_plan_segment, kvstrata_plan_get_segment(plan, 0, value, NULL))
OUTPUT(kvstrata_plan_result, kvstrata_plan_wait(plan, UINT64_MAX, value, NULL))
OUTPUT(kvstrata_commit_info, kvstrata_writer_commit(writer, 0, 0, value, NULL))
OUTPUT(kvstrata_close_info, open_and_close(value))
OUTPUT(kvstrata_pin_info, kvstrata_pin_get_info(pin, value, NULL))
OUTPUT(kvstrata_pin_range, kvstrata_pin_get_range(pin, 0, value, NULL))

/* Written by the library for the caller's functions: as long as the library's own, whatever the caller knows. */
static void try_kvstrata_storage_request(size_t mine, size_t today) {
  (void)mine;
  CHECK(request_size == today);
}
static void try_kvstrata_storage_entry(size_t mine, size_t today) {
  (void)mine;
  CHECK(entry_size == today);
}
static void try_kvstrata_copy(size_t mine, size_t today) {
  (void)mine;
  CHECK(copy_size == today);
}

static kvstrata_status open_storage(void* value, kvstrata_error* error) {
  kvstrata_cache_options options = options_of_cache();
  options.storage = value;
  return open_with(&options, error);
}
static void try_kvstrata_storage(size_t mine, size_t today) {
  try_input(&storage_table, mine, today, "storage", open_storage);
}
static kvstrata_status open_device(void* value, kvstrata_error* error) {
  kvstrata_cache_options options = options_of_cache();
  options.device = value;
  return open_with(&options, error);
}
static void try_kvstrata_device(size_t mine, size_t today) {
  try_input(&device_table, mine, today, "device", open_device);
}
static kvstrata_status open_allocator(void* value, kvstrata_error* error) {
  kvstrata_cache_options options = options_of_cache();
  options.allocator = value;
  return open_with(&options, error);
}
static void try_kvstrata_allocator(size_t mine, size_t today) {
  try_input(&allocator_table, mine, today, "allocator", open_allocator);
}
static kvstrata_status open_cache(void* value, kvstrata_error* error) { return open_with(value, error); }
static void try_kvstrata_cache_options(size_t mine, size_t today) {
  const kvstrata_cache_options options = options_of_cache();
  try_input(&options, mine, today, "options", open_cache);
}

static kvstrata_status set_columns(const void* columns, uint64_t stride, kvstrata_error* error) {
  kvstrata_buffer buffer = buffer_of(0, rows[0], KVSTRATA_MEMORY_HOST);
  buffer.columns = columns;
  buffer.column_count = 2;
  SET_STRIDE(buffer.column_stride);
  return kvstrata_writer_set_source(writer, &buffer, error);
}
static void try_kvstrata_column(size_t mine, size_t today) {
  ZERO(kvstrata_column, left);
  left.bytes = ROW_BYTES / 2;
  left.stride = ROW_BYTES;
  kvstrata_column right = left;
  right.offset = ROW_BYTES / 2;
  try_array(&left, &right, mine, today, "source.columns", set_columns);
}
static kvstrata_status start(const void* destinations, uint64_t stride, kvstrata_error* error) {
  kvstrata_plan* out = NULL;
  kvstrata_status status = kvstrata_plan_create(match, NULL, &out, error);
  if (status == KVSTRATA_OK) status = kvstrata_plan_start(out, destinations, 2, stride, error);
  if (status == KVSTRATA_OK) status = kvstrata_plan_wait(out, UINT64_MAX, NULL, error);
  kvstrata_plan_destroy(out);
  return status;
}
static kvstrata_status set_source(void* value, kvstrata_error* error) {
  return kvstrata_writer_set_source(writer, value, error);
}
static void try_kvstrata_buffer(size_t mine, size_t today) {
  const kvstrata_buffer keys = buffer_of(0, restored[0], KVSTRATA_MEMORY_HOST);
  const kvstrata_buffer values = buffer_of(1, restored[1], KVSTRATA_MEMORY_DEVICE);
  const kvstrata_buffer source = buffer_of(0, rows[0], KVSTRATA_MEMORY_HOST);
  try_array(&keys, &values, mine, today, "destinations", start);
  try_input(&source, mine, today, "source", set_source);
}

static kvstrata_status get_events(void* value, kvstrata_error* error) {
  uint64_t count = 0, next = 0;
  (void)error;
  return kvstrata_cache_events(cache, 1, value, 1, 0, &count, &next, NULL);
}
static void try_kvstrata_event(size_t mine, size_t today) {
  uint64_t count = 0, next = 0;
  unsigned char* events = place(2 * mine, 0);
  try_output(mine, today, KVSTRATA_OK, get_events);
  set_size(events, mine);
  set_size(events + mine, mine);
  CHECK(kvstrata_cache_events(cache, 1, (kvstrata_event*)events, 2, mine, &count, &next, NULL) == KVSTRATA_OK);
  CHECK(count == 2 && ((kvstrata_event*)(events + mine))->sequence == 2);
  unplace(events, 2 * mine);
}

static kvstrata_status open_fields(const void* fields, uint64_t stride, kvstrata_error* error) {
  kvstrata_namespace* out = NULL;
  ZERO(kvstrata_namespace_options, options);
  options.layout = layout;
  options.fields = fields;
  options.field_count = 2;
  SET_STRIDE(options.field_stride);
  const kvstrata_status status = kvstrata_namespace_open(cache, &options, &out, error);
  kvstrata_namespace_destroy(out);
  return status;
}
static void try_kvstrata_identity_field(size_t mine, size_t today) {
  const kvstrata_identity_field weights = field_of("model.weights"), tenant = field_of("tenant");
  try_array(&weights, &tenant, mine, today, "options.fields", open_fields);
}
static kvstrata_status open_namespace(void* value, kvstrata_error* error) {
  kvstrata_namespace* out = NULL;
  const kvstrata_status status = kvstrata_namespace_open(cache, value, &out, error);
  kvstrata_namespace_destroy(out);
  return status;
}
static void try_kvstrata_namespace_options(size_t mine, size_t today) {
  const kvstrata_identity_field fields[2] = {field_of("model.weights"), field_of("tenant")};
  ZERO(kvstrata_namespace_options, options);
  options.layout = layout;
  options.fields = fields;
  options.field_count = 2;
  try_input(&options, mine, today, "options", open_namespace);
}

static kvstrata_status look_up(const void* tokens, const void* options, kvstrata_error* error) {
  kvstrata_match* out = NULL;
  const kvstrata_status status = kvstrata_lookup(name_space, tokens, options, &out, error);
  kvstrata_match_destroy(out);
  return status;
}
static kvstrata_status look_up_keys(const void* keys, uint64_t stride, kvstrata_error* error) {
  kvstrata_tokens tokens = tokens_of(TOKENS);
  tokens.extra_keys = keys;
  tokens.extra_key_count = 2;
  SET_STRIDE(tokens.extra_key_stride);
  return look_up(&tokens, NULL, error);
}
static void try_kvstrata_extra_key(size_t mine, size_t today) {
  ZERO(kvstrata_extra_key, first);
  kvstrata_extra_key second = first;
  second.position = 3;
  try_array(&first, &second, mine, today, "tokens.extra_keys", look_up_keys);
}
static kvstrata_status look_up_tokens(void* value, kvstrata_error* error) { return look_up(value, NULL, error); }
static void try_kvstrata_tokens(size_t mine, size_t today) {
  const kvstrata_tokens tokens = tokens_of(TOKENS);
  try_input(&tokens, mine, today, "tokens", look_up_tokens);
}
static kvstrata_status look_up_options(void* value, kvstrata_error* error) {
  const kvstrata_tokens tokens = tokens_of(TOKENS);
  return look_up(&tokens, value, error);
}
static void try_kvstrata_lookup_options(size_t mine, size_t today) {
  ZERO(kvstrata_lookup_options, options);
  options.min_gain_tokens = 1;
  try_input(&options, mine, today, "options", look_up_options);
}
static kvstrata_status create_plan(void* value, kvstrata_error* error) {
  kvstrata_plan* out = NULL;
  const kvstrata_status status = kvstrata_plan_create(match, value, &out, error);
  kvstrata_plan_destroy(out);
  return status;
}
static void try_kvstrata_plan_options(size_t mine, size_t today) {
  ZERO(kvstrata_plan_options, options);
  try_input(&options, mine, today, "options", create_plan);
}
static kvstrata_status open_writer(void* value, kvstrata_error* error) {
  kvstrata_writer* out = NULL;
  const kvstrata_status status = kvstrata_writer_open(name_space, match, value, &out, error);
  kvstrata_writer_destroy(out);
  return status;
}
static void try_kvstrata_writer_options(size_t mine, size_t today) {
  ZERO(kvstrata_writer_options, options);
  try_input(&options, mine, today, "options", open_writer);
}

/* ------------------------------------------------------------------------------------------------------------------
 * The kernels: zeros all over but for the size are answered as they are in a struct of today's size.
 */
#define CALL_OF(function, type, today, arguments)                              \
  static int32_t call_##function(const kvstrata_kernels* table, void* value) { \
    uint64_t out_bytes = 0;                                                    \
    const int32_t status = table->function arguments;                          \
    (void)out_bytes;                                                           \
    return status;                                                             \
  }
EACH_KERNEL(CALL_OF)

typedef int32_t (*kernel_fn)(const kvstrata_kernels* table, void* value);

static void try_kernel(const kvstrata_kernels* table, size_t mine, size_t today, kernel_fn call) {
  unsigned char* usual = place(today, 0);
  unsigned char* value = place(mine, 0);
  set_size(usual, today);
  set_size(value, mine);
  const int32_t expected = call(table, usual);
  CHECK(expected != KVSTRATA_KERNELS_STRUCT_TOO_NEW);
  CHECK(call(table, value) == expected);
  for (size_t at = today; at < mine; ++at) {
    value[at] = 1;
    CHECK(call(table, value) == KVSTRATA_KERNELS_STRUCT_TOO_NEW);
    value[at] = 0;
  }
  unplace(usual, today);
  unplace(value, mine);
}

/* Input and output in one. */
static void try_shape(const kvstrata_kernels* table) {
  kvstrata_packed_shape* shape = place(sizeof *shape, 0);
  shape->struct_size = sizeof *shape;
  shape->format = KVSTRATA_KERNELS_FORMAT_V4_ROW;
  CHECK(table->packed_shape(shape) == KVSTRATA_KERNELS_OK);
  CHECK(shape->struct_size == sizeof *shape);
  CHECK(shape->width == 512 && shape->code_bytes == 448 && shape->rope_bytes == 128 && shape->scale_bytes == 8);
  unplace(shape, sizeof *shape);
}

static void try_kernels(int32_t level) {
  const kvstrata_kernels* table = kvstrata_kernels_get(level);
  if (table == NULL) return;
  trying = "kvstrata_kernels";
  CHECK(table->struct_size == KERNELS_SIZE);
#define TRY_KERNEL(function, type, today, arguments) \
  trying = #function;                                \
  try_kernel(table, sizeof(type), today, call_##function);
  EACH_KERNEL(TRY_KERNEL)
  trying = "packed_shape, filled in";
  try_shape(table);
}

/* ------------------------------------------------------------------------------------------------------------------
 * All of it together.
 */
static void store(void) {
  ZERO(kvstrata_writer_options, options);
  ZERO(kvstrata_commit_info, info);
  const kvstrata_tokens tokens = tokens_of(TOKENS);
  CHECK(kvstrata_writer_open(name_space, NULL, &options, &writer, NULL) == KVSTRATA_OK);
  for (uint32_t i = 0; i < 2; ++i) {
    const kvstrata_buffer source = buffer_of(i, rows[i], i == 0 ? KVSTRATA_MEMORY_HOST : KVSTRATA_MEMORY_DEVICE);
    CHECK(kvstrata_writer_set_source(writer, &source, NULL) == KVSTRATA_OK);
  }
  CHECK(kvstrata_writer_advance(writer, &tokens, TOKENS, NULL) == KVSTRATA_OK);
  CHECK(kvstrata_writer_commit(writer, 0, 0, &info, NULL) == KVSTRATA_OK);
  CHECK(info.blocks_stored == TOKENS / BLOCK);
}

/* By a second open, which reads the index out of the caller's storage. */
static void restore(void) {
  ZERO(kvstrata_match_info, info);
  ZERO(kvstrata_plan_result, result);
  const kvstrata_tokens tokens = tokens_of(TOKENS + 1);
  const kvstrata_buffer destinations[2] = {buffer_of(0, restored[0], KVSTRATA_MEMORY_HOST),
                                           buffer_of(1, restored[1], KVSTRATA_MEMORY_DEVICE)};
  CHECK(kvstrata_lookup(name_space, &tokens, NULL, &match, NULL) == KVSTRATA_OK);
  CHECK(kvstrata_match_get_info(match, &info, NULL) == KVSTRATA_OK);
  CHECK(info.usable_tokens == TOKENS);
  CHECK(kvstrata_plan_create(match, NULL, &plan, NULL) == KVSTRATA_OK);
  CHECK(kvstrata_plan_start(plan, destinations, 2, sizeof destinations[0], NULL) == KVSTRATA_OK);
  CHECK(kvstrata_plan_wait(plan, UINT64_MAX, &result, NULL) == KVSTRATA_OK);
  CHECK(result.state == KVSTRATA_PLAN_COMPLETE && result.usable_tokens == TOKENS);
  CHECK(memcmp(rows, restored, sizeof rows) == 0);
}

static void open_by(const kvstrata_cache_options* options) {
  const kvstrata_identity_field fields[2] = {field_of("model.weights"), field_of("tenant")};
  ZERO(kvstrata_namespace_options, names);
  names.layout = layout;
  names.fields = fields;
  names.field_count = 2;
  CHECK(kvstrata_cache_open(options, &cache, NULL) == KVSTRATA_OK);
  CHECK(kvstrata_namespace_open(cache, &names, &name_space, NULL) == KVSTRATA_OK);
}

static void open_all(void) {
  const kvstrata_cache_options options = options_of_cache();
  open_by(&options);
}

/* Rows where they lie, in a store in memory: the caller's own storage has no such place. */
static void pin_rows(void) {
  ZERO(kvstrata_cache_options, in_memory);
  ZERO(kvstrata_pin_info, info);
  ZERO(kvstrata_pin_range, range);
  kvstrata_cache* usual = cache;
  kvstrata_namespace* usual_space = name_space;
  kvstrata_writer* usual_writer = writer;
  kvstrata_match* stored = NULL;
  const kvstrata_tokens tokens = tokens_of(TOKENS + 1);
  in_memory.capacity_bytes = 1 << 20;
  in_memory.device = &device_table;
  open_by(&in_memory);
  store();
  CHECK(kvstrata_lookup(name_space, &tokens, NULL, &stored, NULL) == KVSTRATA_OK);
  CHECK(kvstrata_match_pin(stored, &pin, NULL) == KVSTRATA_OK);
  CHECK(kvstrata_pin_get_info(pin, &info, NULL) == KVSTRATA_OK);
  CHECK(info.first_token == 0 && info.end_token == TOKENS && info.range_count >= 2);
  CHECK(kvstrata_pin_get_range(pin, 0, &range, NULL) == KVSTRATA_OK);
  CHECK(range.rows == TOKENS && memcmp(range.data, rows[range.stream], range.rows * ROW_BYTES) == 0);
  kvstrata_match_destroy(stored);
  kvstrata_writer_destroy(writer);
  kvstrata_namespace_destroy(name_space);
  kvstrata_cache_destroy(cache);
  cache = usual;
  name_space = usual_space;
  writer = usual_writer;
}

static void close_all(void) {
  kvstrata_writer_destroy(writer);
  kvstrata_plan_destroy(plan);
  kvstrata_match_destroy(match);
  kvstrata_namespace_destroy(name_space);
  kvstrata_cache_destroy(cache);
}

int main(void) {
  kvstrata_stream streams[2] = {stream_of(KVSTRATA_ROLE_KEY), stream_of(KVSTRATA_ROLE_VALUE)};
  ZERO(kvstrata_layout_desc, desc);
  storage_table = own_storage();
  device_table = own_device();
  allocator_table = own_allocator();
  for (int i = 0; i <= TOKENS; ++i) ids[i] = 7 * i;
  for (size_t i = 0; i < sizeof rows; ++i) rows[i / sizeof rows[0]][i % sizeof rows[0]] = (unsigned char)(i * 31 >> 3);

  trying = "all together";
  desc.block_tokens = BLOCK;
  desc.streams = streams;
  desc.stream_count = 2;
  CHECK(kvstrata_layout_create(&desc, &layout, NULL) == KVSTRATA_OK);
  open_all();
  store();
  close_all();
  open_all();
  restore();
  pin_rows();
  ids[0] += 1;
  store();
  if (failures != 0) return 1;

#define TRY(name, today) \
  trying = #name;        \
  try_##name(sizeof(name), today);
  EACH_STRUCT(TRY)
  for (int32_t level = KVSTRATA_KERNELS_LEVEL_REFERENCE; level <= KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16; ++level)
    try_kernels(level);

  trying = "the end";
  kvstrata_pin_destroy(pin);
  close_all();
  kvstrata_layout_destroy(layout);
  for (int i = 0; i < RECORDS; ++i) forget(&records[i]);
  printf("%d failure(s)\n", failures);
  return failures == 0 ? 0 : 1;
}
