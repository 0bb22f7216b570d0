/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstrata/c_api.h - the whole C ABI of kvstrata. C99 and C++; includes only <stddef.h>, <stdint.h> and version.h.
 *
 * kvstrata keeps an LLM's computed prompt prefixes on disk and gives them back exactly. The way of the data:
 *
 *   store:    kvstrata_writer_open -> set_source per stream -> advance after each step -> commit
 *   restore:  kvstrata_lookup -> kvstrata_plan_create -> start -> wait -> run tokens replay_from .. n-1
 *
 * CONVENTIONS, valid for everything below
 *
 *   Handles    are incomplete structs. X_destroy(NULL) does nothing; every destroy returns void. A handle holds counted
 *              references to its parents, so handles may be destroyed in any order, and may move between threads. A
 *              handle is externally synchronised (one thread at a time) unless its own sentence says otherwise.
 *   Structs    begin with struct_size, which the caller sets to sizeof. A zero-filled struct with struct_size set is a
 *              complete initialiser: zero is every member's default. The library reads the smaller of both sizes;
 *              members that the caller's size lacks count as zero; a larger struct is accepted only if all bytes that
 *              this library does not know are zero (else KVSTRATA_E_STRUCT_TOO_NEW). A size that ends within a member
 *              is KVSTRATA_E_INVALID_ARGUMENT, as is one below 4 or above 4096. Output structs follow the same
 *              rule: the library writes the smaller of both sizes, keeps the caller's struct_size and zeroes the
 *              surplus. Arrays of structs travel with a stride in bytes (0 = the first element's struct_size); each
 *              element's own struct_size is checked, and is at most the stride.
 *   Status     every function that can fail returns kvstrata_status and takes an optional kvstrata_error*, owned by
 *              the caller, which then names the field and the value at fault. There is no thread-local error text. A
 *              miss is KVSTRATA_OK with a length of zero and a reason. On failure outputs are untouched unless stated
 *              otherwise.
 *   Ownership  an out-pointer to a handle is the caller's to destroy. Pointers passed in are borrowed for the call,
 *              unless stated otherwise. Text returned as const char* is static.
 *   Tokens     are int32 ids. Positions and lengths count tokens from the start of the sequence.
 *   Callbacks  may come from any library thread, must not block for long and must not call back into kvstrata.
 *   Forks      a child process that inherited handles by fork gets KVSTRATA_E_FORKED from every fallible function on
 *              them (layouts excepted: they may be used); destroy and cancel do nothing there, and the parent's store
 *              is not touched. The child may open caches of its own.
 *   Manners    the library never prints, aborts, exits, throws across this ABI, installs signal handlers or changes
 *              process-wide settings. Its threads start at kvstrata_cache_open and block all signals.
 */
#ifndef KVSTRATA_C_API_H
#define KVSTRATA_C_API_H

#include <stddef.h>
#include <stdint.h>

#include "kvstrata/version.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVSTRATA_API __attribute__((visibility("default")))
#else
#define KVSTRATA_API
#endif

/* ------------------------------------------------------------------------------------------------------------------
 * 1. Handles
 */
typedef struct kvstrata_cache kvstrata_cache;         /* one store root; internally synchronised                     */
typedef struct kvstrata_layout kvstrata_layout;       /* what a model stores; immutable, any thread at any time      */
typedef struct kvstrata_namespace kvstrata_namespace; /* identity + layout inside a cache; internally synchronised   */
typedef struct kvstrata_match kvstrata_match;         /* one lookup's result and lease; externally synchronised      */
typedef struct kvstrata_plan kvstrata_plan;           /* one restore; poll, wait and cancel from any thread, the rest
                                                         externally synchronised                                     */
typedef struct kvstrata_pin kvstrata_pin;             /* a match's rows in memory; immutable, any thread at any time  */
typedef struct kvstrata_writer kvstrata_writer;       /* one growing sequence; externally synchronised               */

/* ------------------------------------------------------------------------------------------------------------------
 * 2. Status
 */
typedef int32_t kvstrata_status;

enum {
  KVSTRATA_OK = 0,
  KVSTRATA_E_INVALID_ARGUMENT = 10,  /* an argument or a field is out of its range; error.field names it            */
  KVSTRATA_E_STRUCT_TOO_NEW = 12,    /* a struct carries non-zero members that this library does not know           */
  KVSTRATA_E_UNSUPPORTED = 14,       /* well-formed, but not offered by this build, backend or layout               */
  KVSTRATA_E_INVALID_STATE = 16,     /* the call does not fit the handle's state (closed cache, plan started twice) */
  KVSTRATA_E_READ_ONLY = 18,         /* the cache or its directory cannot be written; native_code is the errno      */
  KVSTRATA_E_LAYOUT_MISMATCH = 20,   /* the store holds this identity with another layout; the message names fields */
  KVSTRATA_E_IDENTITY_MISMATCH = 22, /* no namespace of this identity; the message names the fields that differ     */
  KVSTRATA_E_CORRUPT = 30,           /* stored bytes fail their check                                               */
  KVSTRATA_E_FORMAT_TOO_NEW = 32,    /* stored by a newer version of the on-disk format                             */
  KVSTRATA_E_IO = 40,                /* the storage failed; native_code is the errno where there is one             */
  KVSTRATA_E_NO_SPACE = 42,          /* disk full, or over the budget and nothing can be evicted                    */
  KVSTRATA_E_LOCKED = 44,            /* another process or handle has the store open for writing                    */
  KVSTRATA_E_NOT_FOUND = 46,         /* a key, record, preset or (opened read-only) store does not exist            */
  KVSTRATA_E_CANCELLED = 50,         /* ended by kvstrata_plan_cancel or by a callback                              */
  KVSTRATA_E_TIMEOUT = 52,           /* a deadline passed                                                           */
  KVSTRATA_E_OUT_OF_MEMORY = 60,     /* an allocation failed                                                        */
  KVSTRATA_E_BUFFER_TOO_SMALL = 62,  /* an output array or an opaque state's place is too small; nothing is written */
  KVSTRATA_E_TOO_LARGE = 64,         /* one record is larger than the budget or the staging memory                  */
  KVSTRATA_E_BUSY = 66,              /* a bounded queue is full; try again later                                    */
  KVSTRATA_E_DEVICE = 70,            /* a kvstrata_device call failed; native_code is its status                    */
  KVSTRATA_E_CALLBACK = 80,          /* a caller's callback failed; native_code is its status                       */
  KVSTRATA_E_FORKED = 82,            /* called in a forked child on a handle of its parent                          */
  KVSTRATA_E_INTERNAL = 90           /* a fault of the library                                                      */
};

/* Filled on failure, untouched on success. */
typedef struct kvstrata_error {
  uint32_t struct_size;
  kvstrata_status code;
  int64_t native_code; /* errno, or the status of a callback; 0 = none                                              */
  char field[64];      /* the field, option or record member at fault, or ""; always 0-terminated                   */
  char message[240];   /* one sentence with the value; always 0-terminated, cut when longer                         */
} kvstrata_error;

/* "KVSTRATA_E_IO" for KVSTRATA_E_IO; "KVSTRATA_E_?" for a number that is no status. Static text. Any thread. */
KVSTRATA_API const char* kvstrata_status_name(kvstrata_status status);

/* The SONAME number (KVSTRATA_ABI_VERSION of the library's build), the newest on-disk format it can write, its
 * release. */
KVSTRATA_API uint32_t kvstrata_abi_version(void);
KVSTRATA_API uint32_t kvstrata_format_version(void);
KVSTRATA_API const char* kvstrata_version_string(void);

/* ------------------------------------------------------------------------------------------------------------------
 * 3. Layouts: what one model stores
 *
 * A *rows* stream has one row of row_bytes for each `ratio` tokens and grows with the sequence. A *state* stream
 * describes one position P. How many rows it has at P follows from its role:
 *
 *   WINDOW                      min(P, state_rows)      rows of the last positions, oldest first
 *   OVERLAP, INDEX_OVERLAP      P >= ratio ? state_rows : 0   rows of the last complete group (compressor carry)
 *   OPEN, INDEX_OPEN            P mod ratio             compressor rows of the open group
 *   OPAQUE with row_bytes 0     one row of any size, per snapshot
 *   any other                   state_rows
 */
enum { KVSTRATA_STREAM_ROWS = 1, KVSTRATA_STREAM_STATE = 2 };

enum {
  KVSTRATA_ROLE_CSA_ENTRY = 1,
  KVSTRATA_ROLE_INDEX_KEY = 2,
  KVSTRATA_ROLE_HCA_ENTRY = 3,
  KVSTRATA_ROLE_WINDOW = 10,
  KVSTRATA_ROLE_OVERLAP = 11,
  KVSTRATA_ROLE_OPEN = 12,
  KVSTRATA_ROLE_INDEX_OVERLAP = 13,
  KVSTRATA_ROLE_INDEX_OPEN = 14,
  KVSTRATA_ROLE_OPAQUE = 20,
  KVSTRATA_ROLE_KEY = 30,
  KVSTRATA_ROLE_VALUE = 31,
  KVSTRATA_ROLE_LATENT = 32,
  KVSTRATA_ROLE_OTHER = 99
};

/* The exact packing of a row; two packings of equal size are different identities. Sizes in bytes per row. */
enum {
  KVSTRATA_PACKING_RAW = 1,
  KVSTRATA_PACKING_F32 = 2,
  KVSTRATA_PACKING_BF16 = 3,
  KVSTRATA_PACKING_F16 = 4,
  KVSTRATA_PACKING_FP8_ROW_584 = 10, /* 448 E4M3, 64 bf16, 7 UE8M0 + 1 zero                                          */
  KVSTRATA_PACKING_FP8_ROW_528 = 11, /* 512 E4M3, 16 UE8M0                                                           */
  KVSTRATA_PACKING_FP4_ROW_288 = 12, /* 512 E2M1, 32 E4M3 scales                                                     */
  KVSTRATA_PACKING_FP8_KEY_132 = 13, /* 128 E4M3, one fp32 scale                                                     */
  KVSTRATA_PACKING_FP4_KEY_68 = 14,  /* 128 E2M1, 4 UE8M0                                                            */
  KVSTRATA_PACKING_FP8_ROW_656 = 15  /* V3.2: 512 E4M3, 4 fp32 scales, 64 bf16                                       */
};

enum {
  KVSTRATA_STREAM_EXACT = 1,      /* a lossy codec is refused on it                                                 */
  KVSTRATA_STREAM_OPTIONAL = 2,   /* may be absent: a source or destination need not be given                       */
  KVSTRATA_STREAM_DRAFT = 4,      /* belongs to a draft (MTP) layer; not counted in the model's byte totals         */
  KVSTRATA_STREAM_REPLICATED = 8, /* equal on every rank: stored once                                               */
  KVSTRATA_STREAM_SPLIT = 16      /* each rank has its own part: the identity needs the field "shard"               */
};

typedef struct kvstrata_stream {
  uint32_t struct_size;
  int32_t kind;        /* KVSTRATA_STREAM_ROWS or KVSTRATA_STREAM_STATE                                             */
  int32_t role;        /* KVSTRATA_ROLE_*                                                                           */
  uint32_t layer;      /* model layer, from 0; decides the order of restore                                         */
  uint32_t ratio;      /* tokens per row (rows) or per group (OVERLAP, OPEN); 1 where it has no meaning             */
  uint32_t row_bytes;  /* bytes per row; 0 only for OPAQUE state: a size per snapshot                               */
  uint32_t state_rows; /* state streams: see above; 0 for rows streams                                              */
  int32_t packing;     /* KVSTRATA_PACKING_*                                                                        */
  uint32_t flags;      /* KVSTRATA_STREAM_EXACT | ...                                                               */
  uint32_t reserved0;
} kvstrata_stream;

enum {
  KVSTRATA_REPLAY_NONE = 0,   /* running tokens again cannot rebuild the state                                      */
  KVSTRATA_REPLAY_FULL = 1,   /* exact after (window-1)*layers tokens                                               */
  KVSTRATA_REPLAY_BOUNDED = 2 /* trained for: the last `window` tokens; declared not exact                          */
};

enum { KVSTRATA_PROFILE_F = 1, KVSTRATA_PROFILE_Q = 2, KVSTRATA_PROFILE_S = 3, KVSTRATA_PROFILE_OPAQUE = 4 };

typedef struct kvstrata_layout_desc {
  uint32_t struct_size;
  uint32_t block_tokens;          /* tokens per block, a multiple of every ratio, <= 768; 0 = the least one         */
  int32_t profile;                /* KVSTRATA_PROFILE_*; 0 = OPAQUE                                                 */
  int32_t replay_mode;            /* KVSTRATA_REPLAY_*                                                              */
  uint32_t replay_window;         /* tokens, counting the query itself                                              */
  uint32_t replay_layers;         /* layers whose windows depend on each other                                      */
  const char* family;             /* decides the identity's mandatory fields; NULL = "custom"                       */
  const kvstrata_stream* streams; /* [stream_count], stream_stride bytes apart                                      */
  uint64_t stream_count;          /* <= 4096                                                                        */
  uint64_t stream_stride;         /* bytes; 0 = the first one's struct_size                                         */
} kvstrata_layout_desc;

/* From streams of one's own. The description is copied; *out is the caller's.
 * KVSTRATA_E_INVALID_ARGUMENT names the member that cannot be. Any thread, as all functions of this section. */
KVSTRATA_API kvstrata_status kvstrata_layout_create(const kvstrata_layout_desc* desc, kvstrata_layout** out,
                                                    kvstrata_error* error);

enum { KVSTRATA_ROWS_PACKED = 0, KVSTRATA_ROWS_BF16 = 1, KVSTRATA_ROWS_F32 = 2 };
enum { KVSTRATA_KEYS_FP4 = 0, KVSTRATA_KEYS_FP8 = 1, KVSTRATA_KEYS_BF16 = 2, KVSTRATA_KEYS_F32 = 3 };

typedef struct kvstrata_preset_options {
  uint32_t struct_size;
  uint32_t block_tokens; /* 0 = the preset's own                                                                    */
  int32_t rows;          /* KVSTRATA_ROWS_*                                                                         */
  int32_t index_keys;    /* KVSTRATA_KEYS_*                                                                         */
  uint32_t include_draft; /* 1: also the draft layers' window streams                                               */
  uint32_t reserved0;
} kvstrata_preset_options;

/* "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash", "deepseek-v3.2". `options` may be NULL. Else
 * KVSTRATA_E_NOT_FOUND, and the message lists the names. */
KVSTRATA_API kvstrata_status kvstrata_layout_from_preset(const char* name, const kvstrata_preset_options* options,
                                                         kvstrata_layout** out, kvstrata_error* error);
/* From the text of a model's Hugging Face config.json (`size` bytes, <= 4 MiB, not 0-terminated). */
KVSTRATA_API kvstrata_status kvstrata_layout_from_config(const char* json, uint64_t size,
                                                         const kvstrata_preset_options* options, kvstrata_layout** out,
                                                         kvstrata_error* error);
/* From the canonical text, `size` bytes. Text that is not in canonical form is refused with its line number. */
KVSTRATA_API kvstrata_status kvstrata_layout_from_text(const char* text, uint64_t size, kvstrata_layout** out,
                                                       kvstrata_error* error);
/* Grouped-query (or multi-head) attention: per layer one K and one V row of kv_heads*head_dim*element_bytes per
 * token. */
KVSTRATA_API kvstrata_status kvstrata_layout_gqa(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                                 uint32_t element_bytes, uint32_t block_tokens, kvstrata_layout** out,
                                                 kvstrata_error* error);
/* Multi-head latent attention: per layer one row of row_bytes per token. */
KVSTRATA_API kvstrata_status kvstrata_layout_mla(uint32_t layers, uint32_t row_bytes, uint32_t block_tokens,
                                                 kvstrata_layout** out, kvstrata_error* error);
/* An engine that only hands out its whole state as bytes, of any size at each snapshot. */
KVSTRATA_API kvstrata_status kvstrata_layout_opaque(uint32_t block_tokens, kvstrata_layout** out,
                                                    kvstrata_error* error);
/* Namespaces made with it keep what they need. Nobody may be inside a call with it. */
KVSTRATA_API void kvstrata_layout_destroy(kvstrata_layout* layout);

typedef struct kvstrata_layout_info {
  uint32_t struct_size;
  uint32_t block_tokens;
  uint32_t stream_count;
  int32_t profile;
  int32_t replay_mode;
  uint32_t reserved0;
  uint64_t block_bytes;          /* all rows streams, one block                                                     */
  uint64_t exact_replay_tokens;  /* (window-1)*layers; 0 where replay cannot rebuild the state                      */
  double bytes_per_token;        /* rows streams without draft layers                                               */
  uint8_t digest[16];            /* of the canonical text, as a chain's root (FORMAT.md), high byte first         */
} kvstrata_layout_info;

/* Cannot fail but for an argument, as the other questions to a layout. */
KVSTRATA_API kvstrata_status kvstrata_layout_get_info(const kvstrata_layout* layout, kvstrata_layout_info* out,
                                                      kvstrata_error* error);
/* Stream `index`, from 0 to stream_count-1: the index that buffers use. */
KVSTRATA_API kvstrata_status kvstrata_layout_get_stream(const kvstrata_layout* layout, uint32_t index,
                                                        kvstrata_stream* out, kvstrata_error* error);
/* Bytes of all state streams at `position` (draft layers left out); variable-size streams count 0. */
KVSTRATA_API kvstrata_status kvstrata_layout_snapshot_bytes(const kvstrata_layout* layout, uint64_t position,
                                                            uint64_t* out, kvstrata_error* error);
/* Rows of stream `index` at `position`: of a state stream the rows that describe it, of a rows stream the rows that
 * are complete since the last block boundary. */
KVSTRATA_API kvstrata_status kvstrata_layout_rows_at(const kvstrata_layout* layout, uint32_t index, uint64_t position,
                                                     uint64_t* out, kvstrata_error* error);
/* Writes the canonical text, 0-terminated, if capacity >= *out_size (which counts the 0); else
 * KVSTRATA_E_BUFFER_TOO_SMALL with *out_size set. `buffer` may be NULL with capacity 0. */
KVSTRATA_API kvstrata_status kvstrata_layout_text(const kvstrata_layout* layout, char* buffer, uint64_t capacity,
                                                  uint64_t* out_size, kvstrata_error* error);

/* ------------------------------------------------------------------------------------------------------------------
 * 4. Storage: an engine may bring its own
 *
 * The table is copied when the cache opens; ctx belongs to the cache on success and is destroyed through `destroy`
 * exactly once, after the last call. On failure of kvstrata_cache_open it stays the caller's. All members are called
 * from any thread, several at once. A put replaces an older record of its key as a whole: a get returns bytes of one of
 * both, never a mixture.
 */
typedef struct kvstrata_key {
  uint8_t bytes[32];
} kvstrata_key;

typedef struct kvstrata_iovec {
  const void* data;
  uint64_t size;
} kvstrata_iovec;

enum { KVSTRATA_STORAGE_PUT = 1, KVSTRATA_STORAGE_GET = 2 };

typedef struct kvstrata_storage_request kvstrata_storage_request;
/* Must be called exactly once per accepted request, on any thread, also inside submit. `bytes` is what was moved. */
typedef void (*kvstrata_complete_fn)(void* user, kvstrata_status status, uint64_t bytes, int64_t native_code);

/* One put or ranged get. A storage must serve any range of a record's payload: the library reads records in parts and
 * has no other way. Everything it points to stays valid until its completion; the request itself only during submit: a
 * storage copies it. */
struct kvstrata_storage_request {
  uint32_t struct_size;
  int32_t kind;                /* KVSTRATA_STORAGE_PUT or GET                                                        */
  kvstrata_key key;
  uint64_t offset;             /* GET: first payload byte                                                            */
  void* destination;           /* GET: `size` bytes of the library's staging memory                                  */
  uint64_t size;               /* GET: bytes wanted; a shorter record completes with KVSTRATA_E_CORRUPT              */
  const kvstrata_iovec* parts; /* PUT: the payload, concatenated                                                     */
  uint64_t part_count;
  const void* meta;            /* PUT: at most 4096 bytes that `list` returns                                        */
  uint64_t meta_size;
  kvstrata_complete_fn complete;
  void* user;
};

typedef struct kvstrata_storage_entry {
  uint32_t struct_size;
  uint32_t meta_size;
  kvstrata_key key;
  uint64_t payload_bytes;
  uint64_t stored_bytes;       /* what the record costs of the budget, headers and padding included                  */
  uint8_t meta[4096];
} kvstrata_storage_entry;

enum {
  KVSTRATA_STORAGE_DURABLE_SYNC = 1, /* sync makes earlier puts durable; without it a durable commit is refused     */
  KVSTRATA_STORAGE_PERSISTENT = 2    /* records outlive the process                                                  */
};

typedef struct kvstrata_storage {
  uint32_t struct_size;
  uint32_t abi_version;        /* KVSTRATA_ABI_VERSION of the caller's build                                         */
  void* ctx;
  void (*destroy)(void* ctx);  /* these first four members never move                                                */
  uint64_t capabilities;
  /* Accepts all requests (KVSTRATA_OK) or none. KVSTRATA_E_BUSY: the queue is full. */
  kvstrata_status (*submit)(void* ctx, const kvstrata_storage_request* requests, uint64_t count, uint64_t stride);
  kvstrata_status (*stat)(void* ctx, const kvstrata_key* key, int32_t* out_exists, uint64_t* out_payload_bytes);
  kvstrata_status (*remove)(void* ctx, const kvstrata_key* key); /* an absent key is KVSTRATA_OK                     */
  kvstrata_status (*sync)(void* ctx);
  /* Paged: *cursor is 0 at first; fills up to `capacity` entries, `stride` bytes apart; *cursor 0 afterwards: the end.
   */
  kvstrata_status (*list)(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                          uint64_t stride, uint64_t* out_count);
} kvstrata_storage;

/* ------------------------------------------------------------------------------------------------------------------
 * 5. Devices: memory that the CPU cannot touch
 *
 * The core never dereferences device memory: it moves rows through this table only. Streams and events are the
 * device's own. All members may be called from any library thread. A non-zero status fails the restore or append with
 * KVSTRATA_E_DEVICE. The table is copied when the cache opens; ctx follows the rule of kvstrata_storage.
 */
typedef struct kvstrata_copy {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t host_offset;   /* bytes into the staging buffer                                                          */
  uint64_t device_offset; /* bytes from `device_base`                                                               */
  uint64_t size;          /* bytes of one run                                                                       */
  uint64_t host_stride;   /* bytes between runs on the host                                                         */
  uint64_t device_stride; /* bytes between runs on the device                                                       */
  uint64_t count;         /* runs                                                                                   */
} kvstrata_copy;

enum { KVSTRATA_TO_DEVICE = 1, KVSTRATA_FROM_DEVICE = 2 };

typedef struct kvstrata_device {
  uint32_t struct_size;
  uint32_t abi_version;
  void* ctx;
  void (*destroy)(void* ctx);
  uint64_t capabilities; /* none yet                                                                                */
  /* Host memory that the device can copy from and to asynchronously. NULL = failed. */
  void* (*allocate_pinned)(void* ctx, int32_t device_id, uint64_t size, uint64_t alignment);
  void (*release_pinned)(void* ctx, int32_t device_id, void* memory, uint64_t size);
  /* Enqueues on `stream` the `count` strided copies between pinned `host` memory and device memory at `device_base`.
   * Asynchronous: `host` stays untouched by the library until an event recorded afterwards has been waited for. */
  kvstrata_status (*copy)(void* ctx, int32_t device_id, void* stream, int32_t direction, void* host,
                          void* device_base, const kvstrata_copy* copies, uint64_t count, uint64_t stride);
  kvstrata_status (*record)(void* ctx, int32_t device_id, void* stream, void** out_event);
  /* Blocks the calling thread until the event has happened, at most timeout_ms: then KVSTRATA_E_TIMEOUT. */
  kvstrata_status (*wait)(void* ctx, int32_t device_id, void* event, uint64_t timeout_ms);
  void (*release_event)(void* ctx, int32_t device_id, void* event); /* exactly once per recorded event             */
} kvstrata_device;

/* ------------------------------------------------------------------------------------------------------------------
 * 6. Buffers: where an engine's rows live, as source and as destination
 *
 * One descriptor for both directions, one per stream. It maps a row index to addresses. The index of a row is
 *   - in a rows stream: token position / ratio (row i covers tokens i*ratio .. i*ratio+ratio-1);
 *   - in a WINDOW, OVERLAP or OPEN state stream: the token position that the row belongs to;
 *   - in any other state stream: 0 .. state_rows-1.
 * A canonical row is the concatenation of its columns. Without columns a row is one run of row_bytes. Column c of the
 * row in element e (of a page, for PAGES) lies at
 *   LINEAR  base + offset_c + (row - first) * stride_c       first = first_row; in state streams: the oldest row
 *   RING    base + offset_c + ((row - first_row) mod capacity_rows) * stride_c
 *   PAGES   base + page_ids[row / rows_per_page - first_page] * page_stride
 *                + offset_c + (row % rows_per_page) * stride_c
 *   SLOTS   base + offset_c + slots[row - first] * stride_c  (slots are page_ids; first as for LINEAR)
 * so that a planar page (all codes, then all scales) and an interleaved one differ only in their columns. A page or
 * slot id of -1 skips its rows: as a destination nothing is written, as a source the block cannot be stored and is
 * counted. Every address is checked against [base, base + size_bytes) before anything is touched: rows that do not fit
 * are KVSTRATA_E_INVALID_ARGUMENT.
 */
enum { KVSTRATA_MEMORY_HOST = 0, KVSTRATA_MEMORY_DEVICE = 1 };
enum { KVSTRATA_FORM_LINEAR = 0, KVSTRATA_FORM_RING = 1, KVSTRATA_FORM_PAGES = 2, KVSTRATA_FORM_SLOTS = 3 };

typedef struct kvstrata_column {
  uint32_t struct_size;
  uint32_t bytes;        /* bytes of each row in this column; a stream's columns add up to row_bytes                */
  uint64_t offset;       /* bytes from the base (from the page's start for PAGES) to the column of element 0        */
  uint64_t stride;       /* bytes between consecutive rows of this column                                           */
} kvstrata_column;

typedef struct kvstrata_buffer {
  uint32_t struct_size;
  uint32_t stream;                /* index into the layout's streams                                                */
  int32_t memory;                 /* KVSTRATA_MEMORY_*                                                              */
  int32_t device_id;
  int32_t form;                   /* KVSTRATA_FORM_*                                                                */
  uint32_t rows_per_page;         /* PAGES                                                                          */
  void* base;                     /* never written through as a source                                              */
  uint64_t size_bytes;            /* the whole reach; for OPAQUE as a source: the state's present size              */
  uint64_t first_row;             /* LINEAR, SLOTS: row index of element 0 (rows streams); RING: row index in slot 0
                                     modulo capacity                                                                */
  uint64_t row_stride;            /* bytes between rows when there are no columns; 0 = row_bytes                    */
  uint64_t capacity_rows;         /* RING                                                                           */
  uint64_t page_stride;           /* PAGES: bytes between pages                                                     */
  uint64_t first_page;            /* PAGES: number of the page (row / rows_per_page) that page_ids[0] stands for    */
  const void* page_ids;           /* PAGES, SLOTS: int32 or int64 ids, -1 skips                                     */
  uint64_t page_count;            /* ids given                                                                      */
  uint32_t page_id_bytes;         /* 4 or 8                                                                         */
  uint32_t reserved0;
  const kvstrata_column* columns; /* [column_count], NULL = one column of row_bytes                                 */
  uint64_t column_count;          /* <= 8                                                                           */
  uint64_t column_stride;         /* bytes; 0 = the first one's struct_size                                         */
} kvstrata_buffer;

/* ------------------------------------------------------------------------------------------------------------------
 * 7. Cache
 */

/* Host memory for staging and for the tier of memory. `allocate` returns NULL on failure; sizes and alignments given
 * back are those asked for. Called from any thread. Must outlive the cache and every handle made from it. */
typedef struct kvstrata_allocator {
  uint32_t struct_size;
  uint32_t reserved0;
  void* ctx;
  void* (*allocate)(void* ctx, uint64_t size, uint64_t alignment);
  void (*release)(void* ctx, void* memory, uint64_t size, uint64_t alignment);
} kvstrata_allocator;

enum {
  KVSTRATA_CACHE_READ_ONLY = 1 /* open what is there, write nothing; several may be open                           */
};

/* Which block goes when room is needed. Always one that no stored block hangs on and no lease holds, so that nothing
 * stored is ever out of reach, and one that has expired before any other. */
enum {
  KVSTRATA_EVICT_LRU = 0,      /* the least recently used                                                            */
  KVSTRATA_EVICT_FREQUENCY = 1 /* what was used n times stays 1 + log2(n) times as long as what was used once, and the
                                  longer the more tokens a byte it holds; uses are remembered for a while after a
                                  block has gone (ghost_bytes)                                                       */
};

/* Which blocks are stored. */
enum {
  KVSTRATA_ADMIT_ALWAYS = 0,
  KVSTRATA_ADMIT_SECOND_SIGHT = 1 /* a block that an earlier writer has already asked to store, or that was evicted not
                                     long ago (ghost_bytes); what is used once is never written                      */
};

/* When a put that goes to memory and to the storage below it is complete. */
enum {
  KVSTRATA_WRITE_THROUGH = 0, /* when it is in the storage                                                         */
  KVSTRATA_WRITE_BACK = 1     /* when it is in memory; it goes to the storage behind it, at the latest with a durable
                                 commit, a sync or the close. What the storage then refuses is a miss, and that call
                                 fails                                                                             */
};

/* When a record that was read from the storage is brought into memory: behind the read, whole, by reading it again. */
enum { KVSTRATA_PROMOTE_ON_HIT = 0, KVSTRATA_PROMOTE_ON_SECOND_HIT = 1, KVSTRATA_PROMOTE_NEVER = 2 };

typedef struct kvstrata_cache_options {
  uint32_t struct_size;
  uint32_t flags;
  const char* path;                    /* a directory, made when missing, as are those above it (mode 0700); NULL and
                                          no storage: in memory only                                                */
  const kvstrata_storage* storage;     /* the engine's own store; excludes path                                     */
  const kvstrata_device* device;       /* for buffers in device memory; may be NULL                                 */
  const kvstrata_allocator* allocator; /* NULL = the library's own                                                  */
  uint64_t capacity_bytes;             /* hard bound of stored bytes, headers included; required unless read-only   */
  uint64_t snapshot_bytes;             /* of these, at most this much for snapshots; 0 = a quarter                  */
  uint64_t staging_bytes;              /* bound of staging memory; 0 = 64 MiB                                       */
  uint64_t lease_bytes;                /* bound of what leases pin; 0 = half of capacity_bytes                      */
  uint64_t lease_ms;                   /* default lifetime of a lease; 0 = 60,000                                   */
  uint64_t io_timeout_ms;              /* a read that takes longer is a miss; 0 = 30,000                            */
  uint32_t io_threads;                 /* of the store at `path` (0 = 8) and of restores (0 = 2); at most 64        */
  uint32_t max_blocks;                 /* bound of the index; 0 = 16 Mi blocks                                      */
  int32_t eviction_policy;             /* KVSTRATA_EVICT_*                                                          */
  int32_t admission;                   /* KVSTRATA_ADMIT_*                                                          */
  uint32_t high_percent;               /* of capacity_bytes: a put that would pass it evicts first; 0 = 100         */
  uint32_t low_percent;                /* ... down to this and no further; 0 = high_percent: just what is needed    */
  uint64_t ghost_bytes;                /* memory for keys of blocks that are not there, 8 bytes each; 0 = 4 MiB, and
                                          none where neither policy nor admission needs them; at most 1 GiB         */
  uint64_t keep_free_bytes;            /* of the storage's medium: a put that would leave less evicts as much as is
                                          missing, and is dropped where that does not help; 0 = no floor. The store at
                                          `path` does not grow into it: its files are never made smaller, so a put that
                                          finds no room in them evicts, or is dropped. KVSTRATA_E_UNSUPPORTED where the
                                          storage cannot tell what is free                                          */
  uint64_t lane;                       /* of the store at `path`, 0 to 63; UINT64_MAX = the lowest that is free. A lane
                                          has one process that writes it; capacity_bytes and the other bounds are the
                                          lane's. KVSTRATA_E_LOCKED names the lane that somebody else writes. Lookups
                                          find what other lanes hold soon after it has become durable there; what they
                                          have evicted is a miss. A read-only opener has no lane and finds all       */
  uint64_t memory_bytes;               /* a tier of memory over the store at `path`, or over `storage`: a hard bound, in
                                          the allocator's memory or in huge pages, evicted by itself, coldest first;
                                          0 = none                                                                  */
  uint64_t memory_dirty_bytes;         /* WRITE_BACK: the most payload that is in memory only; 0 = half           */
  int32_t memory_write;                /* KVSTRATA_WRITE_*                                                          */
  int32_t memory_promotion;            /* KVSTRATA_PROMOTE_*                                                        */
} kvstrata_cache_options;

/* Opens or makes a store and rebuilds its index; payload is not read. Blocks for as long as the storage takes, each of
 * its calls for at most io_timeout_ms. On failure nothing is kept: storage, device and allocator stay the caller's.
 * After KVSTRATA_E_TIMEOUT requests may still be on their way in a storage of the caller's; it must complete them, and
 * the allocator must stay until it has. */
KVSTRATA_API kvstrata_status kvstrata_cache_open(const kvstrata_cache_options* options, kvstrata_cache** out,
                                                 kvstrata_error* error);

typedef struct kvstrata_close_info {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t dropped_blocks;    /* accepted but not stored when the deadline passed or the storage failed             */
  uint64_t dropped_snapshots;
} kvstrata_close_info;

/* Drains accepted writes for at most timeout_ms (0 = 30,000), makes them durable, ends the threads and closes the
 * storage. Handles made from the cache stay valid but answer KVSTRATA_E_INVALID_STATE, but for the functions that only
 * tell what the handle knows (match_get_info, pin_get_*, plan_poll, plan_wait*, plan_get_segment) or shorten a
 * writer's tokens (writer_truncate). Closing twice is KVSTRATA_OK.
 * KVSTRATA_E_TIMEOUT: requests are stuck in the storage. Nothing is torn down under them; close or destroy the cache
 * again when the storage has answered, else storage, device and staging memory stay for the life of the process. `out`
 * may be NULL. */
KVSTRATA_API kvstrata_status kvstrata_cache_close(kvstrata_cache* cache, uint64_t timeout_ms, kvstrata_close_info* out,
                                                  kvstrata_error* error);
/* Closes (if still open, waiting as kvstrata_cache_close does; or, without waiting, if it could not be closed in time)
 * and releases. Nobody may be inside a call with this handle; other handles made from the cache stay valid, and answer
 * as after a close. */
KVSTRATA_API void kvstrata_cache_destroy(kvstrata_cache* cache);

/* One set of counters since open, and gauges of now. Counters never decrease; gauges say so. */
typedef struct kvstrata_stats {
  uint32_t struct_size;
  uint32_t reserved0;
  /* lookups: lookups == hits + misses; a hit has usable_tokens > 0 */
  uint64_t lookups, hits, misses;
  uint64_t requested_tokens, matched_tokens, usable_tokens, replayed_tokens;
  /* why lookups missed or were cut short, one count per lookup, by kvstrata_reason (index = reason) */
  uint64_t reasons[16];
  uint64_t unleased_matches;   /* matches whose lease was refused by the lease budget                               */
  uint64_t peeks;              /* lookups with KVSTRATA_LOOKUP_PEEK, not counted above                              */
  /* restores */
  uint64_t restores, restores_complete, restores_shortened, restores_cancelled, restores_failed;
  uint64_t restored_bytes;
  uint64_t reads_corrupt, reads_absent, reads_foreign, reads_stale, reads_failed, reads_timeout; /* records          */
  /* stores; dropped counts tries: a block that could not be kept ends one, with all that came after it in the call   */
  uint64_t blocks_stored, blocks_deduplicated, blocks_dropped, snapshots_stored, snapshots_dropped;
  uint64_t blocks_evicted, snapshots_evicted, blocks_removed, snapshots_removed; /* removed: corrupt or dropped      */
  uint64_t bytes_in, bytes_out; /* found by open or put, and gone again: bytes_in - bytes_out == held_bytes          */
  /* gauges */
  uint64_t held_bytes, held_row_bytes, held_snapshot_bytes, capacity_bytes, snapshot_capacity_bytes;
  uint64_t held_blocks, held_snapshots;
  uint64_t leased_bytes, lease_capacity_bytes; /* leased: also what blocks on their way to the storage hang on, which no
                                                  bound refuses; a lease is given while all of it is within capacity */
  uint64_t staging_bytes, staging_capacity_bytes, staging_peak_bytes, stuck_staging_bytes;
  uint64_t index_bytes;
  uint64_t namespaces;
  uint64_t recovered_blocks, recovered_snapshots;                          /* found by open                          */
  uint64_t skipped_corrupt, skipped_orphans, skipped_foreign, skipped_too_new; /* records not taken by open          */
  uint64_t foreign_layout_bytes; /* gauge: bytes of stored namespaces that no open handle uses                       */
  uint64_t inexact_dropped; /* of the dropped blocks and snapshots: not exact, see KVSTRATA_WRITER_ADMIT_INEXACT      */
  uint64_t blocks_expired;      /* of the evicted ones: their time to live was over                                  */
  uint64_t blocks_not_admitted; /* not stored: seen for the first time, see KVSTRATA_ADMIT_SECOND_SIGHT              */
  uint64_t unfreed_bytes; /* gauge, of held_row_bytes: of evicted blocks that share a record with blocks before them */
  uint64_t restored_memory_bytes; /* of restored_bytes: read from memory, be it a tier or the whole store           */
  /* the tier of memory, all zero without one. Gauges: what records take of it, pinned ones included; payload that is
   * not in the storage below yet */
  uint64_t memory_capacity_bytes, memory_bytes, memory_dirty_bytes;
  uint64_t pinned_bytes, pin_capacity_bytes; /* gauges: held by kvstrata_pin handles                                 */
  /* reads of parts of records, by the tier that answered */
  uint64_t memory_gets, memory_get_bytes, storage_gets, storage_get_bytes;
  uint64_t memory_promotions, memory_promoted_bytes, memory_evictions, memory_evicted_bytes;
  uint64_t memory_bypasses; /* puts that found no room in it                                                         */
  uint64_t memory_lost;     /* records that were put back and that the storage below refused                         */
  uint64_t compressed_from_bytes, compressed_to_bytes; /* of the streams that KVSTRATA_COMPRESS_* and KVSTRATA_PACK_*
                                                          chose, as far as they were stored: bytes given, bytes that
                                                          they take                                                */
  uint64_t packed_slices, off_grid_slices; /* what one stream has of one block, or of a snapshot: stored in a form of
                                              KVSTRATA_PACK_*, or off its grid                                     */
  uint64_t unreadable_blocks; /* gauge: of 4096 bytes each, of the logs of a store in a directory, of all its lanes:
                                 the drive refused to read them (EIO) when they were opened. What they told of is not
                                 found, and can be stored again                                                    */
} kvstrata_stats;

/* No I/O. Gauges of staging memory are read after the others: no sum over both need be exact. */
KVSTRATA_API kvstrata_status kvstrata_cache_stats(kvstrata_cache* cache, kvstrata_stats* out, kvstrata_error* error);

enum {
  KVSTRATA_EVENT_BLOCK_STORED = 1,
  KVSTRATA_EVENT_BLOCK_REMOVED = 2,
  KVSTRATA_EVENT_SNAPSHOT_STORED = 3,
  KVSTRATA_EVENT_SNAPSHOT_REMOVED = 4,
  KVSTRATA_EVENT_NAMESPACE_DROPPED = 5
};

typedef struct kvstrata_event {
  uint32_t struct_size;
  int32_t kind;
  uint64_t sequence;        /* from 1, without gaps; a reader that sees a gap was too slow and must start over      */
  uint8_t namespace_id[16];
  uint8_t digest[16];       /* the block's chain digest                                                              */
  uint64_t position;        /* tokens at the end of the block, or of the snapshot                                    */
  uint64_t bytes;
} kvstrata_event;

/* The events from `from_sequence` on that the ring (the last 4096) still holds. *out_next is the sequence to ask for
 * next. `events` may be NULL with capacity 0. Never blocks on I/O, and waits for no event. */
KVSTRATA_API kvstrata_status kvstrata_cache_events(kvstrata_cache* cache, uint64_t from_sequence,
                                                   kvstrata_event* events, uint64_t capacity, uint64_t stride,
                                                   uint64_t* out_count, uint64_t* out_next, kvstrata_error* error);

/* Called at least once a second by long operations; a non-zero return ends the operation with KVSTRATA_E_CANCELLED. */
typedef int32_t (*kvstrata_progress_fn)(void* user, uint64_t done, uint64_t total);

typedef struct kvstrata_verify_info {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t records, bytes;               /* checked                                                                  */
  uint64_t corrupt, removed, unreadable; /* corrupt ones are removed, with what hangs on them, unless read-only      */
} kvstrata_verify_info;

/* Reads every record and checks identity and checksums. `progress` may be NULL; it is called from this thread.
 * Blocks for as long as the reading takes; other threads' calls go on beside it. */
KVSTRATA_API kvstrata_status kvstrata_cache_verify(kvstrata_cache* cache, kvstrata_progress_fn progress, void* user,
                                                   kvstrata_verify_info* out, kvstrata_error* error);
/* Evicts, coldest leaf first, until at most target_bytes are held or only leased records are left. Beside threads that
 * go on storing it evicts what was too much when it was called. */
KVSTRATA_API kvstrata_status kvstrata_cache_trim(kvstrata_cache* cache, uint64_t target_bytes,
                                                 uint64_t* out_held_bytes, kvstrata_error* error);
/* Makes everything stored before the call durable. KVSTRATA_E_UNSUPPORTED where the storage cannot. After a flush has
 * failed this and durable commits fail until the cache is opened again: what is stored later may hang on what was lost.
 */
KVSTRATA_API kvstrata_status kvstrata_cache_sync(kvstrata_cache* cache, kvstrata_error* error);
/* Removes the stored namespaces that no open handle uses, with all their records. Blocks for as long as that takes;
 * *out_bytes (may be NULL) is what they held. */
KVSTRATA_API kvstrata_status kvstrata_cache_purge_foreign(kvstrata_cache* cache, uint64_t* out_bytes,
                                                          kvstrata_error* error);

/* ------------------------------------------------------------------------------------------------------------------
 * 8. Namespaces
 */

/* One named part of an identity. All bytes are compared, never a hash alone. Names: [a-z0-9_.-], 1 to 64 characters.
 * `bytes` NULL with size > 0 is an error; size 0 is a value of its own. */
typedef struct kvstrata_identity_field {
  uint32_t struct_size;
  uint32_t reserved0;
  const char* name;
  const void* bytes;
  uint64_t size; /* <= 65536                                                                                        */
} kvstrata_identity_field;

enum {
  KVSTRATA_NAMESPACE_MUST_EXIST = 1 /* else KVSTRATA_E_IDENTITY_MISMATCH or LAYOUT_MISMATCH, naming what differs   */
};

/* When snapshots are written. 0 = PROMPT_END | OUTPUT_END | COMMON_PREFIX. */
enum {
  KVSTRATA_SNAPSHOT_PROMPT_END = 1,
  KVSTRATA_SNAPSHOT_OUTPUT_END = 2,
  KVSTRATA_SNAPSHOT_EVERY_N = 4,
  KVSTRATA_SNAPSHOT_COMMON_PREFIX = 8,
  KVSTRATA_SNAPSHOT_NEVER = 16
};

/* Which streams are stored compressed, without loss, by what their rows are. Costs the thread that calls advance or
 * snapshot about a second for each GB of them, and a restore, which decompresses, more time than it saves in reading
 * from a fast drive: worth it where capacity is short. Rows that gain nothing are stored as they are; compressed ones
 * cannot be pinned. Readers of another setting read both. */
enum {
  KVSTRATA_COMPRESS_ENTRIES = 1,     /* rows of role CSA_ENTRY, HCA_ENTRY or LATENT                                */
  KVSTRATA_COMPRESS_INDEX_KEYS = 2,  /* rows of role INDEX_KEY                                                     */
  KVSTRATA_COMPRESS_KEYS_VALUES = 4, /* rows of role KEY or VALUE                                                  */
  KVSTRATA_COMPRESS_OTHER_ROWS = 8,  /* any other rows                                                             */
  KVSTRATA_COMPRESS_STATES = 16,     /* all state streams                                                          */
  KVSTRATA_COMPRESS_ALL = 31
};

/* Packed forms for rows and states that the engine keeps as F32 or BF16, by their width: what lies on the form's grid
 * is stored in that form, and restored as the same floats, bit for bit. Each block's part of a stream is tried; one
 * that would not come back is stored as it is, and counted (off_grid_slices). At most one form of each width. */
enum {
  KVSTRATA_PACK_FP8_ROW_584 = 1, /* rows of 512 numbers                                                            */
  KVSTRATA_PACK_FP8_ROW_528 = 2,
  KVSTRATA_PACK_FP4_ROW_288 = 4,
  KVSTRATA_PACK_FP8_KEY_132 = 8, /* rows of 128 numbers                                                            */
  KVSTRATA_PACK_FP4_KEY_68 = 16
};

typedef struct kvstrata_namespace_options {
  uint32_t struct_size;
  uint32_t flags;
  const kvstrata_layout* layout;
  const kvstrata_identity_field* fields; /* the layout's family says which names must be there                     */
  uint64_t field_count;                  /* <= 64                                                                   */
  uint64_t field_stride;                 /* bytes; 0 = the first one's struct_size                                  */
  uint32_t snapshot_policy;              /* KVSTRATA_SNAPSHOT_*                                                     */
  uint32_t snapshot_every_tokens;        /* EVERY_N                                                                 */
  uint32_t compress;                     /* KVSTRATA_COMPRESS_*, of what writers of this handle store; 0 = nothing  */
  uint32_t pack;                         /* KVSTRATA_PACK_*, likewise; 0 = nothing                                  */
} kvstrata_namespace_options;

/* The namespace of this identity and layout, made if the store has none (in a read-only cache: empty, and for this
 * process alone). Blocks on storage when it is made. Layout and fields are copied and may go at once. Opening the same
 * one again gives another handle on it. The namespace must be chosen by the host program, never by a request: it is the
 * wall between tenants. */
KVSTRATA_API kvstrata_status kvstrata_namespace_open(kvstrata_cache* cache, const kvstrata_namespace_options* options,
                                                     kvstrata_namespace** out, kvstrata_error* error);
/* What is stored stays. Matches, plans and writers made from it stay valid. */
KVSTRATA_API void kvstrata_namespace_destroy(kvstrata_namespace* name_space);

typedef struct kvstrata_namespace_info {
  uint32_t struct_size;
  uint32_t existed;          /* 1: the store had it when it was opened                                              */
  uint8_t id[16];            /* of this life of the namespace; never reused                                         */
  uint64_t blocks, snapshots, row_bytes, snapshot_bytes;
  uint64_t foreign_layout_bytes; /* bytes of other stored namespaces whose identity is equal but for the layout    */
  char nearest_difference[240]; /* to the nearest other stored namespace: "block_tokens: stored 128, given 256"      */
} kvstrata_namespace_info;

/* Of now. No I/O. */
KVSTRATA_API kvstrata_status kvstrata_namespace_get_info(kvstrata_namespace* name_space, kvstrata_namespace_info* out,
                                                         kvstrata_error* error);
/* Forgets everything stored under this namespace. Durable before it returns (where the storage can); no read that
 * starts later returns old bytes. Open matches of it read as misses. The handle stays usable: it is empty then. When it
 * fails, the next open may find the namespace as it was (less what has gone meanwhile) or empty, never a mixture: drop
 * it again. */
KVSTRATA_API kvstrata_status kvstrata_namespace_drop(kvstrata_namespace* name_space, kvstrata_error* error);

/* ------------------------------------------------------------------------------------------------------------------
 * 9. Lookup
 */

/* What besides its token id makes a position's rows what they are: an image digest, an adapter switch. Compared
 * whole. */
typedef struct kvstrata_extra_key {
  uint32_t struct_size;
  uint32_t type;     /* the engine's own numbering                                                                  */
  uint64_t position; /* absolute; keys come in ascending order of position                                          */
  const void* bytes;
  uint64_t size;     /* <= 1024                                                                                     */
} kvstrata_extra_key;

typedef struct kvstrata_tokens {
  uint32_t struct_size;
  uint32_t reserved0;
  const int32_t* ids;
  uint64_t count;
  const kvstrata_extra_key* extra_keys;
  uint64_t extra_key_count;
  uint64_t extra_key_stride; /* bytes; 0 = the first one's struct_size                                              */
} kvstrata_tokens;

enum {
  KVSTRATA_LOOKUP_PEEK = 1,      /* no lease, no recency, no statistics but `peeks`                                  */
  KVSTRATA_LOOKUP_NO_LEASE = 2   /* recency but no lease                                                             */
};

/* Ways to resume; see kvstrata_match_info.mode. As bits in allowed_modes: 1 << mode. */
enum {
  KVSTRATA_MODE_NONE = 0,
  KVSTRATA_MODE_SNAPSHOT = 1,        /* blocks to the usable length, state at it; nothing runs again but the tail    */
  KVSTRATA_MODE_SNAPSHOT_REPLAY = 2, /* blocks to H, state at S < H; tokens S .. H-1 run again                       */
  KVSTRATA_MODE_FULL_REPLAY = 3,     /* blocks to H, no state; tokens H-(W-1)*L .. H-1 run again from an empty window */
  KVSTRATA_MODE_BOUNDED_REPLAY = 4   /* blocks to H; the last W tokens run again: not exact, for models trained so  */
};

/* Why a match is not longer, or nothing. */
enum {
  KVSTRATA_REASON_NONE = 0,
  KVSTRATA_REASON_ABSENT = 1,             /* not even the first block is stored                                     */
  KVSTRATA_REASON_DIVERGED = 2,           /* stored up to the matched length; what follows differs or is not stored */
  KVSTRATA_REASON_CAPPED = 3,             /* at least one token must be computed, or kvstrata_match_limit           */
  KVSTRATA_REASON_SHORTER_THAN_BLOCK = 4,
  KVSTRATA_REASON_NO_SNAPSHOT = 5,        /* rows are there, state is not, and replay is not allowed                */
  KVSTRATA_REASON_MODE_NOT_ALLOWED = 6,
  KVSTRATA_REASON_NOT_WORTH_IT = 7,       /* restoring would take longer than computing                             */
  KVSTRATA_REASON_MIN_GAIN = 8,
  KVSTRATA_REASON_RESTART_GRID = 9,       /* no position on the caller's restart grid                               */
  KVSTRATA_REASON_REPLAY_TOO_LONG = 10,   /* the replay would begin at 0                                            */
  KVSTRATA_REASON_HELD = 11,              /* the caller already holds as much                                       */
  KVSTRATA_REASON_FOREIGN = 12,           /* a stored record belongs to another identity                            */
  KVSTRATA_REASON_CORRUPT = 13,
  KVSTRATA_REASON_EVICTED = 14,           /* gone between lookup and read                                           */
  KVSTRATA_REASON_UNREADABLE = 15         /* the storage failed or was too slow                                     */
};

typedef struct kvstrata_lookup_options {
  uint32_t struct_size;
  uint32_t flags;
  uint64_t held_tokens;              /* the caller already has the rows of this many leading tokens                 */
  uint32_t allowed_modes;            /* bits 1 << KVSTRATA_MODE_*; 0 = SNAPSHOT only                                */
  uint32_t restart_multiple;         /* usable length, snapshot position and replay_from are multiples of it; 0 = 1 */
  uint64_t min_gain_tokens;          /* fewer tokens saved than this: a miss                                        */
  double prefill_tokens_per_second;  /* 0 = unknown: then no hit is refused for its cost                            */
  double storage_bytes_per_second;   /* 0 = as measured by this cache                                               */
  uint64_t lease_ms;                 /* 0 = the cache's default                                                     */
} kvstrata_lookup_options;

typedef struct kvstrata_match_info {
  uint32_t struct_size;
  int32_t mode;                /* KVSTRATA_MODE_*                                                                   */
  int32_t reason;              /* KVSTRATA_REASON_*: what kept it from being longer                                 */
  uint32_t leased;             /* 1: the promise holds until lease_ms after the lookup or the last renewal          */
  uint64_t prompt_tokens;
  uint64_t matched_tokens;     /* longest stored chain of blocks, at most prompt_tokens-1, on the block grid        */
  uint64_t usable_tokens;      /* rows and state up to here can be had                                              */
  uint64_t replay_from;        /* the engine runs tokens from here on                                               */
  uint64_t write_floor;        /* rows of tokens below it must not be written while replaying                       */
  uint64_t snapshot_position;  /* of the snapshot that will be read; UINT64_MAX = none                              */
  uint64_t held_tokens;
  uint64_t reused_tokens;      /* = replay_from; the three parts add up to prompt_tokens                            */
  uint64_t replayed_tokens;    /* = usable_tokens - replay_from                                                     */
  uint64_t recomputed_tokens;  /* = prompt_tokens - usable_tokens                                                   */
  uint64_t bytes_to_read;
  double restore_seconds;      /* estimate of the reading; 0 = the storage's rate is unknown                        */
  double recompute_seconds;    /* estimate of running tokens replay_from .. n-1; 0 = the prefill rate is unknown    */
} kvstrata_match_info;

/* Longest stored prefix of `tokens`. Pure memory: no I/O. `options` may be NULL. Always gives a match on success, also
 * for a miss. The tokens are copied. */
KVSTRATA_API kvstrata_status kvstrata_lookup(kvstrata_namespace* name_space, const kvstrata_tokens* tokens,
                                             const kvstrata_lookup_options* options, kvstrata_match** out,
                                             kvstrata_error* error);
/* Ends the lease, or leaves it to the plans made from the match: it is over when all of them have been destroyed. */
KVSTRATA_API void kvstrata_match_destroy(kvstrata_match* match);
/* What was found, after the last kvstrata_match_limit or _agree. Still answers when the lease has ended. */
KVSTRATA_API kvstrata_status kvstrata_match_get_info(const kvstrata_match* match, kvstrata_match_info* out,
                                                     kvstrata_error* error);
/* Prolongs the lease to lease_ms from now (0 = default). KVSTRATA_E_INVALID_STATE if it has already ended. */
KVSTRATA_API kvstrata_status kvstrata_match_renew(kvstrata_match* match, uint64_t lease_ms, kvstrata_error* error);
/* Plans anew with usable_tokens <= max_usable_tokens, so that the ranks of one model can agree. */
KVSTRATA_API kvstrata_status kvstrata_match_limit(kvstrata_match* match, uint64_t max_usable_tokens,
                                                  kvstrata_error* error);
/* Limits all `count` matches (1 to 65536) of one prompt (equal token ids and extra keys) to the largest usable length
 * that every one of them reaches, within the limits that kvstrata_match_limit has set on them. */
KVSTRATA_API kvstrata_status kvstrata_match_agree(kvstrata_match* const* matches, uint64_t count,
                                                  uint64_t* out_usable_tokens, kvstrata_error* error);
/* The position of the first token that differs from the nearest stored continuation; UINT64_MAX when there is none.
 * Reads the token ids of at most 16 stored blocks. */
KVSTRATA_API kvstrata_status kvstrata_match_first_difference(kvstrata_match* match, uint64_t* out_position,
                                                             kvstrata_error* error);

/* Rows of a match where they lie in memory, without a copy: in the tier of memory (memory_bytes), or in a store in
 * memory. What comes from there is proven like what a plan restores; a record's checksums once for each stay in memory,
 * by the first pin of it. All pins of a cache hold at most half of the tier (without one: lease_bytes). */
typedef struct kvstrata_pin_info {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t first_token, end_token; /* the rows of these blocks are pinned; equal: none is in memory                  */
  uint64_t range_count;
  uint64_t held_bytes;             /* memory that cannot be evicted while the pin lives                             */
} kvstrata_pin_info;

typedef struct kvstrata_pin_range {
  uint32_t struct_size;
  uint32_t stream;
  uint64_t first_row; /* row index as in kvstrata_buffer                                                            */
  uint64_t rows;      /* 0: the stream is optional, and these blocks were stored without it                         */
  const void* data;   /* rows * row_bytes bytes, back to back, of any alignment; not to be written                  */
  uint64_t bytes;
} kvstrata_pin_range;

/* Pins the leading blocks of what the match's plan reads, as far as they are in memory and not compressed: no I/O. A
 * state, and what is not in memory or is compressed, a plan restores: for a lookup with held_tokens, or for chosen
 * streams. The rows stay valid and unchanged until the pin is destroyed, whatever becomes of match, lease and cache. */
KVSTRATA_API kvstrata_status kvstrata_match_pin(const kvstrata_match* match, kvstrata_pin** out,
                                                kvstrata_error* error);
KVSTRATA_API kvstrata_status kvstrata_pin_get_info(const kvstrata_pin* pin, kvstrata_pin_info* out,
                                                   kvstrata_error* error);
/* Ranges come in the order of the blocks, and for the same blocks by layer. */
KVSTRATA_API kvstrata_status kvstrata_pin_get_range(const kvstrata_pin* pin, uint64_t index, kvstrata_pin_range* out,
                                                    kvstrata_error* error);
KVSTRATA_API void kvstrata_pin_destroy(kvstrata_pin* pin);

/* ------------------------------------------------------------------------------------------------------------------
 * 10. Restore
 */
enum {
  KVSTRATA_PLAN_EARLY_RELEASE = 1 /* layers are given out as they arrive; if a later read fails the result is SHORTENED
                                     and the engine discards what it did with them                                  */
};

enum {
  KVSTRATA_PLAN_CREATED = 0,
  KVSTRATA_PLAN_RUNNING = 1,
  KVSTRATA_PLAN_COMPLETE = 2,  /* all of the match's promise is in the destinations                                 */
  KVSTRATA_PLAN_SHORTENED = 3, /* some record could not be read: the result's lengths are smaller                   */
  KVSTRATA_PLAN_CANCELLED = 4,
  KVSTRATA_PLAN_FAILED = 5     /* a destination or device failed; nothing is usable                                 */
};

typedef struct kvstrata_plan_result {
  uint32_t struct_size;
  int32_t state;            /* KVSTRATA_PLAN_*                                                                      */
  int32_t mode;             /* what holds now; NONE with usable_tokens 0 when nothing could be read                 */
  int32_t reason;
  uint64_t usable_tokens, replay_from, write_floor;
  uint64_t snapshot_position;
  uint64_t layers_ready;    /* leading layers (ascending layer numbers that have streams) that may be used          */
  uint64_t layers_total;
  uint64_t bytes_read;
  uint32_t quiesced;        /* 1: the destinations are the caller's again. 0 of a plan that has ended: the device did
                               not answer, and rows that were queued may come until its stream is synchronised      */
  kvstrata_status status;   /* of a FAILED or CANCELLED plan                                                        */
} kvstrata_plan_result;

/* Called when a layer became ready and once at the end, never inside start. May only signal (set a flag, wake a
 * thread). A non-zero return cancels the plan. Wait, cancel and destroy wait for one that is running: call them without
 * holding a lock that it takes. */
typedef int32_t (*kvstrata_plan_signal_fn)(void* user, uint64_t layers_ready, int32_t state);

typedef struct kvstrata_plan_options {
  uint32_t struct_size;
  uint32_t flags;
  const uint32_t* streams;  /* only these streams are restored; NULL = all that have a destination must have one    */
  uint64_t stream_count;
  uint64_t timeout_ms;      /* of the whole restore; what has not arrived then is a miss; 0 = none but io_timeout   */
  void* stream;             /* the device's stream for device destinations                                          */
  kvstrata_plan_signal_fn signal;
  void* signal_user;
} kvstrata_plan_options;

/* `options` may be NULL. The plan keeps the match's lease until it is destroyed. No I/O, except where the layout has a
 * state of varying size: then the snapshot's head is read, since the caller must know the size. */
KVSTRATA_API kvstrata_status kvstrata_plan_create(kvstrata_match* match, const kvstrata_plan_options* options,
                                                  kvstrata_plan** out, kvstrata_error* error);

/* What will be read, one entry per stream that is not empty, in the order in which it arrives. */
typedef struct kvstrata_plan_segment {
  uint32_t struct_size;
  uint32_t stream;
  uint32_t layer;
  uint32_t reserved0;
  uint64_t first_row; /* row index as in kvstrata_buffer                                                             */
  uint64_t rows;
  uint64_t bytes;     /* for OPAQUE state: the size that the destination must have                                   */
} kvstrata_plan_segment;

/* Known from kvstrata_plan_create on, and the same until the plan is destroyed; 0 for NULL and for a miss. */
KVSTRATA_API uint64_t kvstrata_plan_segment_count(const kvstrata_plan* plan);
KVSTRATA_API kvstrata_status kvstrata_plan_get_segment(const kvstrata_plan* plan, uint64_t index,
                                                       kvstrata_plan_segment* out, kvstrata_error* error);

/* Checks every destination against the plan, then begins. From here until the plan has quiesced the destinations'
 * memory is the plan's own; page id arrays and columns are copied. Nothing outside the given ranges is ever written. */
KVSTRATA_API kvstrata_status kvstrata_plan_start(kvstrata_plan* plan, const kvstrata_buffer* destinations,
                                                 uint64_t count, uint64_t stride, kvstrata_error* error);
/* How it stands; KVSTRATA_OK in any state, failed and cancelled ones too: the result's `state` and `status` tell. Never
 * blocks. Any thread. */
KVSTRATA_API kvstrata_status kvstrata_plan_poll(const kvstrata_plan* plan, kvstrata_plan_result* out,
                                                kvstrata_error* error);
/* Waits until the leading `layers` layers are ready or the plan has ended; KVSTRATA_E_TIMEOUT after timeout_ms leaves
 * the plan running. UINT64_MAX waits without limit of its own (io_timeout_ms bounds it). `out` may be NULL. */
KVSTRATA_API kvstrata_status kvstrata_plan_wait_layers(kvstrata_plan* plan, uint64_t layers, uint64_t timeout_ms,
                                                       kvstrata_plan_result* out, kvstrata_error* error);
/* Waits for the end and quiescence, as the function above with its timeout. KVSTRATA_OK says that the plan has ended,
 * not how: look at the result. KVSTRATA_E_INVALID_STATE before it was started or cancelled. Any thread. */
KVSTRATA_API kvstrata_status kvstrata_plan_wait(kvstrata_plan* plan, uint64_t timeout_ms, kvstrata_plan_result* out,
                                                kvstrata_error* error);
/* In any state, and more than once; one that has ended stays as it ended. When it has returned, the destinations are
 * never touched again, even if reads are still stuck; but see `quiesced`. It waits for copies to a device that are
 * under way, io_timeout_ms at most. Any thread. */
KVSTRATA_API void kvstrata_plan_cancel(kvstrata_plan* plan);
/* Cancels a running plan, and does not wait for reads that are stuck. Nobody may be inside a call with it. */
KVSTRATA_API void kvstrata_plan_destroy(kvstrata_plan* plan);

/* ------------------------------------------------------------------------------------------------------------------
 * 11. Store
 */
enum {
  KVSTRATA_WRITER_NO_ADMIT = 1,    /* keeps the chain but stores nothing new (read-only request)                     */
  KVSTRATA_WRITER_NO_SNAPSHOTS = 2,
  /* A writer that goes on after KVSTRATA_MODE_BOUNDED_REPLAY drops, and counts, the rows and states that follow from
   * it: they are declared not exact, and who finds them later cannot tell. With this flag they are stored like any. */
  KVSTRATA_WRITER_ADMIT_INEXACT = 4
};

/* How long a block stays when it is not used, against what others stay. */
enum {
  KVSTRATA_PRIORITY_NORMAL = 0,
  KVSTRATA_PRIORITY_LOW = 1, /* a quarter                                                                            */
  KVSTRATA_PRIORITY_HIGH = 2 /* four times                                                                           */
};

typedef struct kvstrata_writer_options {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t restart_multiple; /* snapshots are taken only at multiples of it; 0 = 1                                  */
  uint32_t reserved0;
  uint64_t start_tokens;     /* with a match: tokens whose rows are already in the sources; 0 = the match's usable
                                length. After a restore give the plan instead.                                      */
  uint64_t wait_ms;          /* how long advance may wait for staging memory before it drops a block; 0 = 1,000     */
  void* stream;              /* the device's stream for device sources                                              */
  const kvstrata_plan* plan; /* the restore that brought the rows: the writer starts at its result's usable_tokens, be
                                that 0; excludes start_tokens. KVSTRATA_E_INVALID_STATE before the plan has ended   */
  int32_t priority;          /* KVSTRATA_PRIORITY_* of the blocks stored; those found keep theirs if it is higher   */
  uint32_t ttl_seconds;      /* blocks stored are misses after it, those found live at least as long, and none outlives
                                the block before it; snapshots go with their block. Kept when the store is closed;
                                0 = for ever                                                                        */
} kvstrata_writer_options;

/* A writer for one sequence. With a match or a plan, it continues (or forks from) their prompt at start_tokens or at
 * the plan's result; else it starts empty. `match` and `options` may be NULL; with a plan, `match` is NULL or that of
 * the plan. Both may be destroyed afterwards. KVSTRATA_E_TOO_LARGE where a block takes more than all staging memory. */
KVSTRATA_API kvstrata_status kvstrata_writer_open(kvstrata_namespace* name_space, const kvstrata_match* match,
                                                  const kvstrata_writer_options* options, kvstrata_writer** out,
                                                  kvstrata_error* error);
/* Registers where a stream's rows are; again to replace it (new page table, other size of an opaque state). Columns and
 * page ids are copied. The memory must stay readable during advance, snapshot and commit calls only. */
KVSTRATA_API kvstrata_status kvstrata_writer_set_source(kvstrata_writer* writer, const kvstrata_buffer* source,
                                                        kvstrata_error* error);
/* After each step: appends `tokens` (may be NULL) to the sequence and says that the rows of the first computed_length
 * tokens, and the state at computed_length, are in the sources. Rows of newly complete blocks are copied before it
 * returns, those of a hit that has been evicted meanwhile included; storing goes on in the background. Takes a snapshot
 * when computed_length is a wanted position. What cannot be stored is dropped and counted, never an error of the
 * sequence. */
KVSTRATA_API kvstrata_status kvstrata_writer_advance(kvstrata_writer* writer, const kvstrata_tokens* tokens,
                                                     uint64_t computed_length, kvstrata_error* error);
/* Takes a snapshot at the computed length now. KVSTRATA_E_INVALID_STATE off the restart grid or at length 0. */
KVSTRATA_API kvstrata_status kvstrata_writer_snapshot(kvstrata_writer* writer, kvstrata_error* error);
/* Where this prompt wants snapshots, ascending: cut prefill chunks there. Those below the writer's computed length are
 * left out; one at it (after a full replay) is taken by the next advance, even one without tokens. Also remembers them,
 * so that advance takes them. `positions` may be NULL with capacity 0; *out_count is the number of all, and
 * KVSTRATA_E_BUFFER_TOO_SMALL is returned when capacity is smaller. */
KVSTRATA_API kvstrata_status kvstrata_writer_snapshot_positions(kvstrata_writer* writer, const kvstrata_tokens* prompt,
                                                                uint64_t* positions, uint64_t capacity,
                                                                uint64_t* out_count, kvstrata_error* error);
/* Takes back the tokens from `length` on (rejected draft tokens). Blocks stored already stay valid for others. */
KVSTRATA_API kvstrata_status kvstrata_writer_truncate(kvstrata_writer* writer, uint64_t length, kvstrata_error* error);
/* An independent writer at the same point, with the same sources until they are set anew. */
KVSTRATA_API kvstrata_status kvstrata_writer_fork(const kvstrata_writer* writer, kvstrata_writer** out,
                                                  kvstrata_error* error);

enum {
  KVSTRATA_COMMIT_DURABLE = 1,   /* sync before returning                                                            */
  KVSTRATA_COMMIT_OUTPUT_END = 2 /* the output has ended here: store the newest state as the policy says             */
};

typedef struct kvstrata_commit_info {
  uint32_t struct_size;
  uint32_t durable;              /* 1: survives power loss                                                          */
  uint64_t sequence_tokens, computed_tokens;
  uint64_t blocks_stored, blocks_deduplicated, blocks_dropped; /* of this writer, since it was opened               */
  uint64_t snapshots_stored, snapshots_deduplicated, snapshots_dropped;
  uint64_t stored_bytes;
  int32_t drop_reason;           /* status of the last drop, 0 = none; KVSTRATA_E_UNSUPPORTED: it was not exact     */
  uint32_t reserved0;
} kvstrata_commit_info;

/* Waits until everything accepted so far is stored and visible (at most timeout_ms; 0 = 30,000). `out` may be NULL. */
KVSTRATA_API kvstrata_status kvstrata_writer_commit(kvstrata_writer* writer, uint32_t flags, uint64_t timeout_ms,
                                                    kvstrata_commit_info* out, kvstrata_error* error);
/* What was accepted is still stored; a held output-end snapshot that was not committed is dropped. */
KVSTRATA_API void kvstrata_writer_destroy(kvstrata_writer* writer);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVSTRATA_C_API_H */
