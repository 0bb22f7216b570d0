/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstrata/kernels.h - the compute kernels of DeepSeek-V4 style compressed attention, as one table of functions.
 * C99, includes only <stddef.h> and <stdint.h>. Usable alone: no other kvstrata header is needed.
 *
 * How to call. Fill an argument struct with zeros, set struct_size = sizeof of it, set what the function needs, call
 * through the table. Every function returns a status (below) and takes the stream last (a cudaStream_t for the CUDA
 * level, ignored and normally NULL on the CPU).
 *
 *   const kvstrata_kernels* k = kvstrata_kernels_get(KVSTRATA_KERNELS_LEVEL_AUTO);
 *   kvstrata_rms_norm_args a = {0};
 *   a.struct_size = sizeof a; ...
 *   int32_t status = k->rms_norm(&a, NULL);
 *
 * What a shorter struct of an older caller lacks counts as zero; a longer one of a newer caller is taken as long as all
 * bytes that this library does not know are zero.
 *
 * Rules that hold for all functions:
 *   - No function allocates, locks, prints or keeps a pointer after it returned (a CUDA function: after its work on
 *     the stream is done). Where scratch memory is needed, the caller asks X_workspace_bytes and passes `workspace`.
 *     The question looks at shapes and flags only: data pointers may still be NULL.
 *   - On any status but 0 no output has been written. Sizes, NULL pointers, misaligned pointers, flags and parameters
 *     are checked; that a buffer is as long as the shapes say is the caller's promise.
 *   - Shapes are written [outer][inner], innermost last. Strides count ELEMENTS of the pointed-to type between
 *     neighbours of the outer dimension; names ending in _bytes count bytes. A stride of 0 means tightly packed. The
 *     innermost dimension is always contiguous.
 *   - Pointers are aligned for their type (4 for float and int32_t, 2 for bf16, 8 for int64_t). Byte planes (uint8_t*,
 *     movement, windows) need no alignment.
 *   - Outputs do not overlap inputs unless the function says "in place".
 *   - A count of 0 (rows, tokens) is success and does nothing; data pointers may then be NULL.
 *   - The floats of one row do not depend on how a prompt is cut into calls, nor on threads. Within one level they
 *     are the same bits on every machine of that level; between levels they agree within the documented tolerance.
 *     Packing equal floats gives equal bytes on every level.
 *   - All functions are thread-safe as long as calls do not share memory that one of them writes. No function makes a
 *     thread: cut the work yourself. Rows, tokens and heads (attention: heads = fewer, pointers advanced) are
 *     independent; index_scores can be cut by entries (first_entry) and movement by rows (first_row). A compressor can
 *     be cut where an entry ends: give each part its own state, and start all but the first one block early, discarding
 *     the first entry (with OVERLAP), so that the part has its own previous block.
 *
 * Words: t = absolute token position from 0; P = tokens already processed, so the next token has position P;
 * m = ratio, tokens per compressed entry; w = width of a row; entry i covers tokens i*m .. i*m+m-1 and is visible to
 * query t if and only if i < floor((t+1)/m), so a query sees the entry that it closes.
 */
#ifndef KVSTRATA_KERNELS_H
#define KVSTRATA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifndef KVSTRATA_API
#if defined(__GNUC__)
#define KVSTRATA_API __attribute__((visibility("default")))
#else
#define KVSTRATA_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Status: the same numbers as kvstrata's other functions. */
enum {
  KVSTRATA_KERNELS_OK = 0,
  KVSTRATA_KERNELS_INVALID_ARGUMENT = 10, /* a NULL, misaligned or contradictory argument                       */
  KVSTRATA_KERNELS_STRUCT_TOO_NEW = 12,   /* the struct is longer than this library knows and its tail is not 0 */
  KVSTRATA_KERNELS_UNSUPPORTED = 14,      /* a valid request that this level does not implement                 */
  KVSTRATA_KERNELS_DEVICE = 70            /* CUDA: the driver refused the launch; what was queued before it stays */
};

/* Levels of kvstrata_kernels_get. The environment variable KVSTRATA_KERNELS_MAX_LEVEL (reference, portable, avx2,
 * avx512 or avx512_bf16; read once, at the first call) bounds what AUTO and CPU choose; a level asked for by its own
 * number is not bounded. Unknown text bounds nothing. */
enum {
  KVSTRATA_KERNELS_LEVEL_AUTO = 0,      /* the best there is on the host: CPU, or REFERENCE where that is NULL */
  KVSTRATA_KERNELS_LEVEL_REFERENCE = 1, /* scalar, obvious: the oracle                                         */
  KVSTRATA_KERNELS_LEVEL_CPU = 2,       /* SIMD, the best of the CPU_ levels that this machine has             */
  KVSTRATA_KERNELS_LEVEL_CUDA = 3,      /* device pointers, work is queued on the stream                       */
  KVSTRATA_KERNELS_LEVEL_CPU_PORTABLE = 16,   /* what the build's target always has: SSE2, NEON, ...           */
  KVSTRATA_KERNELS_LEVEL_CPU_AVX2 = 17,       /* x86-64-v3: AVX2, FMA, F16C, BMI2                              */
  KVSTRATA_KERNELS_LEVEL_CPU_AVX512 = 18,     /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL                          */
  KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16 = 19 /* and BF16, VNNI, VBMI: Zen 4, Sapphire Rapids and later        */
};

/* Numeric profiles. 0 is refused, so that a forgotten profile is seen. */
enum {
  KVSTRATA_KERNELS_PROFILE_F = 1, /* float: no rounding points, no quantisation, no Hadamard                    */
  KVSTRATA_KERNELS_PROFILE_Q = 2, /* as trained: bf16 rounding points, quantise-dequantise, Hadamard            */
  KVSTRATA_KERNELS_PROFILE_S = 3  /* storage: computes the same floats as Q; the packed bytes are pack_rows of
                                     those, and unpack_rows gives them back bit for bit                         */
};

/* Element types of weights, inputs and the unpacked side of packing. PACKED is an output of `compress` only. */
enum { KVSTRATA_KERNELS_F32 = 0, KVSTRATA_KERNELS_BF16 = 1, KVSTRATA_KERNELS_PACKED = 2 };

/* Element type of page ids. */
enum { KVSTRATA_KERNELS_INT32 = 0, KVSTRATA_KERNELS_INT64 = 1 };

/*
 * Packed row formats. A row has up to three planes: codes, rope (bf16, not quantised), scales. The planes are addressed
 * apart, so rows may lie interleaved (all strides 584) or in planar pages (code stride 576, scale stride 8, ...).
 *
 *   format         | row (default)         | codes        | rope       | scales                                | bytes
 *   V4_ROW         | 448 nope + 64 rope    | 448 E4M3     | 64 bf16    | 7 UE8M0 (blocks of 64), 1 zero byte   | 584
 *   V4_INDEX_FP4   | 128                   | 64 (2 a byte)|            | 4 UE8M0 (blocks of 32)                |  68
 *   V4_INDEX_FP8   | 128                   | 128 E4M3     |            | 1 fp32, a power of two                | 132
 *   V41_WINDOW     | 512                   | 512 E4M3     |            | 16 UE8M0 (blocks of 32)               | 528
 *   V41_ENTRY      | 512                   | 256 (2 a byte)|           | 32 E4M3 (blocks of 16)                | 288
 *
 * E4M3 is the variant without infinities (0x7F and 0xFF are NaN, largest 448, smallest subnormal 2^-9), E2M1 has the
 * magnitudes 0 .5 1 1.5 2 3 4 6, both round to nearest even and saturate. Of two FP4 codes the even channel lies in
 * the low nibble. UE8M0 byte b means 2^(b-127).
 * Scales: E4M3 formats: e = ceil(log2(max(amax, 1e-4) / 448)); V4_INDEX_FP4: e = ceil(log2(max(amax, 6*2^-126) / 6)),
 * both taken from the bits of the fp32 product amax * fp32(1/448) or amax * fp32(1/6); V41_ENTRY: scale =
 * E4M3(max(amax, 6*2^-9) / 6). NaN: takes no part in amax; an E4M3 code becomes NaN, an E2M1 code becomes 0.
 *
 * A `width` of 0 means the defaults of the table (then rope_dims is taken as 64 for V4_ROW, 0 for the others). Other
 * widths are for small models: the quantised part, width - rope_dims, must be a multiple of the block (V4_INDEX_FP8:
 * any even width, one block); rope_dims is even, and 0 but for V4_ROW; the scale plane of V4_ROW is then nope/64 bytes,
 * padded with zeros to a multiple of 8.
 *
 * Packing floats that unpacking gave returns the same floats, in every format but one case: a V41_ENTRY block that was
 * packed with scale code 2 (2^-8) and whose largest magnitude is 4 * 2^-8. Keep such rows packed.
 */
enum {
  KVSTRATA_KERNELS_FORMAT_NONE = 0,
  KVSTRATA_KERNELS_FORMAT_V4_ROW = 1,
  KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4 = 2,
  KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP8 = 3,
  KVSTRATA_KERNELS_FORMAT_V41_WINDOW = 4,
  KVSTRATA_KERNELS_FORMAT_V41_ENTRY = 5
};

/* ---------------------------------------------------------------------------------------------------------------
 * Numeric formats
 */

/* Bytes per row of each plane. packed_shape fills it from format, width and rope_dims (0 = defaults, written back). */
typedef struct kvstrata_packed_shape {
  uint32_t struct_size;
  int32_t format;
  uint32_t width;
  uint32_t rope_dims;
  uint32_t code_bytes;
  uint32_t rope_bytes;
  uint32_t scale_bytes;
  uint32_t row_bytes; /* the sum */
} kvstrata_packed_shape;

/* Packed rows in memory: three byte planes. Strides of 0: tight; no alignment. `rope` may be NULL when the format's
 * rope_bytes is 0. Never grows. */
typedef struct kvstrata_packed_planes {
  uint8_t* codes; /* [rows][code_bytes] */
  uint64_t code_stride_bytes;
  uint8_t* rope; /* [rows][rope_bytes] */
  uint64_t rope_stride_bytes;
  uint8_t* scales; /* [rows][scale_bytes] */
  uint64_t scale_stride_bytes;
} kvstrata_packed_planes;

/* pack_rows: floats to bytes. */
typedef struct kvstrata_pack_rows_args {
  uint32_t struct_size;
  int32_t format;
  uint32_t width;
  uint32_t rope_dims;
  int32_t source_type; /* F32 or BF16 */
  uint32_t reserved0;
  uint64_t rows;
  const void* source; /* [rows][width] */
  uint64_t source_stride;
  uint8_t* codes; /* [rows][code_bytes] */
  uint64_t code_stride_bytes;
  uint8_t* rope; /* [rows][rope_bytes]; may be NULL when rope_bytes is 0 */
  uint64_t rope_stride_bytes;
  uint8_t* scales; /* [rows][scale_bytes]; padding bytes are written as 0 */
  uint64_t scale_stride_bytes;
} kvstrata_pack_rows_args;

/* unpack_rows: bytes to floats; exact (every packed value is a bf16 number). Scale bytes 255 (UE8M0 NaN) and NaN
 * codes give NaN. */
typedef struct kvstrata_unpack_rows_args {
  uint32_t struct_size;
  int32_t format;
  uint32_t width;
  uint32_t rope_dims;
  int32_t destination_type; /* F32 or BF16 */
  uint32_t reserved0;
  uint64_t rows;
  const uint8_t* codes;
  uint64_t code_stride_bytes;
  const uint8_t* rope;
  uint64_t rope_stride_bytes;
  const uint8_t* scales;
  uint64_t scale_stride_bytes;
  void* destination; /* [rows][width] */
  uint64_t destination_stride;
} kvstrata_unpack_rows_args;

/* quantize_dequantize, in place: each row becomes unpack(pack(row)); the rope part is rounded to bf16. */
typedef struct kvstrata_quantize_args {
  uint32_t struct_size;
  int32_t format;
  uint32_t width;
  uint32_t rope_dims;
  uint64_t rows;
  float* values; /* [rows][width] */
  uint64_t value_stride;
} kvstrata_quantize_args;

/* f32_to_bf16 (round to nearest even, NaN stays NaN), bf16_to_f32, bf16_round (source and destination float, may be
 * the same). Flat arrays of `count` elements. */
typedef struct kvstrata_convert_args {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t count;
  const void* source;
  void* destination;
} kvstrata_convert_args;

/* hadamard, in place: natural-order Walsh-Hadamard butterflies over all `width` channels (a power of two, at most
 * 65536), times width^-0.5; profiles Q and S round the result to bf16. Its own inverse. */
typedef struct kvstrata_hadamard_args {
  uint32_t struct_size;
  int32_t profile;
  uint32_t width;
  uint32_t reserved0;
  uint64_t rows;
  float* values; /* [rows][width] */
  uint64_t value_stride;
} kvstrata_hadamard_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Positions
 */

/* rope_frequencies: f0_k = theta^(-2k/rope_dims). With yarn_factor > 0 the YaRN mix:
 * low = max(0, floor(D ln(L/(beta_fast 2 pi)) / (2 ln theta))), high = min(D-1, ceil(the same with beta_slow)) for D
 * = rope_dims, L = original_length; ramp_k = clamp((k-low)/(high-low), 0, 1); f_k = f0_k/yarn_factor * ramp_k + f0_k
 * * (1-ramp_k). No magnitude factor. yarn_factor = 0: plain, the other YaRN members are ignored. */
typedef struct kvstrata_rope_frequencies_args {
  uint32_t struct_size;
  uint32_t rope_dims; /* even */
  double theta;       /* > 1 */
  double yarn_factor;
  double original_length;
  double beta_fast;
  double beta_slow;
  float* frequencies; /* [rope_dims/2] */
} kvstrata_rope_frequencies_args;

enum { KVSTRATA_KERNELS_ROPE_INVERSE = 1 };

/* rope, in place: the pairs (width-rope_dims+2k, +1) of every row are rotated by angle fp32(position) * f_k, an fp32
 * product; (a, b) -> (a cos - b sin, a sin + b cos); INVERSE rotates back. Profiles Q and S round the rotated
 * channels to bf16. All heads of a token share its position. sin and cos are within 0.51 ulp on every level, so that
 * before rounding two levels differ by at most 2^-23 * (|a| + |b|). */
typedef struct kvstrata_rope_args {
  uint32_t struct_size;
  int32_t profile;
  uint32_t flags;
  uint32_t heads; /* 0 means 1 */
  uint32_t width;
  uint32_t rope_dims;
  uint64_t tokens;
  float* values; /* [tokens][heads][width] */
  uint64_t token_stride;
  uint64_t head_stride;
  const int64_t* positions; /* [tokens], or NULL: token n has position first_position + n * position_step */
  int64_t first_position;
  int64_t position_step;    /* 1 for tokens, m for entries */
  const float* frequencies; /* [rope_dims/2] */
} kvstrata_rope_args;

/* rms_norm: x * 1/sqrt(mean(x^2) + eps) * weight, all fp32; profiles Q and S round the result to bf16. May be in
 * place. A level may reorder the sum, of w positive terms; before rounding two levels differ by at most (w/4 + 10) *
 * 2^-24 of the result. */
typedef struct kvstrata_rms_norm_args {
  uint32_t struct_size;
  int32_t profile;
  uint32_t width;
  float eps;
  uint64_t rows;
  const float* source; /* [rows][width] */
  uint64_t source_stride;
  const float* weight; /* [width], or NULL: no weight */
  float* destination;  /* [rows][width] */
  uint64_t destination_stride;
} kvstrata_rms_norm_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Compressors
 */

enum { KVSTRATA_KERNELS_POOL_OVERLAP = 1 };

/*
 * csa_pool and hca_pool: gated pooling with state. A chunk of any length from any position; a decode step is a chunk
 * of one.
 *
 * Let c = 2w with OVERLAP (channels [0,w) are the P half, used when the token's block is the previous block of an
 * entry; [w,2w) the C half, used when it is the current one), else c = w. Token s has value u_s and gate z_s + APE[s
 * mod m]. Entry i, for every channel j apart: softmax over the gates of block i-1 (P half; only with OVERLAP and i >
 * 0) and of block i, max-subtracted, fp32; the weighted sum of the values. Summed in this order: previous block,
 * current block, tokens ascending; the division by the sum of weights comes last. A level may subtract another gate
 * than the greatest as long as nothing overflows by it. With n rows, gates with APE up to G and values up to V in size,
 * two levels differ by at most 4 * (2 G + 4 + 3 n) * 2^-24 * V: a weight's exponent is off by a rounding of a
 * difference of gates, a weight by 2^-24 (1 + 3 * weight) where the greatest is near 1 or above, a sum by a rounding
 * per row, and numerator and denominator both count.
 *
 * State after P tokens, r = P mod m, read on entry and updated on success:
 *   prev_values, prev_gates [m][w]   P half of the last complete block, gates with APE. Not read while P < m (so
 *                                    nothing needs to be cleared at the start of a sequence). Only with OVERLAP.
 *   open_values, open_gates [m][c]   the r rows of the open block, gates with APE. Rows r.. are not read or kept.
 * Both tightly packed; saving the first r rows and, for P >= m, prev saves the state exactly. To start in the middle
 * without state (a replay whose first entries are discarded), fill values with 0 and gates with -infinity or 0.
 *
 * Emits entries P/m .. (P+tokens)/m - 1 as pooled fp32 rows (before norm and RoPE), into entries[0..].
 * hca_pool is the same for large m without overlap; it refuses OVERLAP.
 */
typedef struct kvstrata_pool_args {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t ratio;    /* m >= 1 */
  uint32_t width;    /* w */
  uint64_t position; /* P before the call */
  uint64_t tokens;
  const void* values; /* [tokens][c] of input_type */
  uint64_t value_stride;
  const void* gates; /* [tokens][c], without APE; ratio 1 without OVERLAP: not read (weight 1), may be NULL */
  uint64_t gate_stride;
  const float* ape; /* [m][c] tight, or NULL: none */
  float* prev_values;
  float* prev_gates;
  float* open_values; /* ratio 1 without OVERLAP: not used, may be NULL; as open_gates */
  float* open_gates;
  float* entries; /* [entry_capacity][w]; may be NULL when no entry completes */
  uint64_t entry_stride;
  uint64_t entry_capacity; /* rows; at least (P+tokens)/m - P/m */
  int32_t input_type;      /* of values and gates: F32, or BF16, which is widened exactly */
  uint32_t reserved0;
} kvstrata_pool_args;

enum {
  KVSTRATA_KERNELS_EMIT_NO_NORM = 1, /* the input is normalised already (V4.1's latent)                 */
  KVSTRATA_KERNELS_EMIT_HADAMARD = 2 /* profiles Q and S: Hadamard over all channels before quantising  */
};

/*
 * emit_entries: from pooled rows to stored rows; may be in place. In profiles Q and S, in this order: round to bf16;
 * RMSNorm (weight in fp32), round; RoPE on the last rope_dims at position (first_entry + n) * ratio, round; with
 * HADAMARD: Hadamard, round; quantise-dequantise by `format` (FORMAT_NONE: not). Profile F: norm and RoPE only;
 * HADAMARD and format are ignored. Main entries: format V4_ROW. Index keys: HADAMARD and V4_INDEX_FP4 (or FP8).
 * Window rows: ratio 1, first_entry = position.
 */
typedef struct kvstrata_emit_entries_args {
  uint32_t struct_size;
  int32_t profile;
  uint32_t flags;
  int32_t format;
  uint32_t width;
  uint32_t rope_dims;
  uint32_t ratio;
  float eps;
  uint64_t first_entry;
  uint64_t rows;
  const float* pooled; /* [rows][width] */
  uint64_t pooled_stride;
  const float* norm_weight; /* [width], or NULL: no weight */
  const float* frequencies; /* [rope_dims/2] */
  float* entries;           /* [rows][width] */
  uint64_t entry_stride;
} kvstrata_emit_entries_args;

/*
 * compress: csa_pool or hca_pool, then emit_entries with first_entry = P / ratio, then the conversion to output_type,
 * in one pass, without the pooled rows in between. The result is that of the three calls on the same level, bit for
 * bit.
 *   F32     the floats of emit_entries
 *   BF16    those rounded to bf16 (profiles Q and S: exact, they are bf16 numbers)
 *   PACKED  pack_rows of those by `format`, into `packed`; FORMAT_NONE is refused. V4_ROW packs with this rope_dims,
 *           the other formats with rope_dims 0
 * Window rows are compress with ratio 1 and no OVERLAP. State, position and tokens as in pool_args; members of both
 * steps mean what they mean there.
 */
typedef struct kvstrata_compress_args {
  uint32_t struct_size;
  int32_t profile;
  uint32_t pool_flags; /* KVSTRATA_KERNELS_POOL_* */
  uint32_t emit_flags; /* KVSTRATA_KERNELS_EMIT_* */
  uint32_t ratio;
  uint32_t width;
  uint32_t rope_dims;
  int32_t format;
  int32_t input_type;  /* F32 or BF16 */
  int32_t output_type; /* F32, BF16 or PACKED */
  float eps;
  uint32_t reserved0;
  uint64_t position;
  uint64_t tokens;
  const void* values; /* [tokens][c] */
  uint64_t value_stride;
  const void* gates; /* [tokens][c] */
  uint64_t gate_stride;
  const float* ape; /* [m][c] tight, or NULL */
  float* prev_values;
  float* prev_gates;
  float* open_values;
  float* open_gates;
  const float* norm_weight; /* [width], or NULL: no weight */
  const float* frequencies; /* [rope_dims/2] */
  void* entries;            /* [entry_capacity][width]; PACKED: not used */
  uint64_t entry_stride;
  kvstrata_packed_planes packed; /* PACKED only */
  uint64_t entry_capacity;
  void* workspace; /* aligned to 4 */
  uint64_t workspace_bytes;
} kvstrata_compress_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Sliding window. Rows are bytes here: floats, bf16 or packed. The ring's slot of position p is p mod capacity.
 *
 * window_append: rows of positions position .. position+rows-1 into the ring; of more than `capacity` rows only the
 * last land. window_import: the same, but rows <= capacity is required: puts back what window_export gave.
 * window_export: the rows of those positions out of the ring, in position order; rows <= capacity. That they are
 * in the ring (written, and not yet overwritten) is the caller's promise.
 */
typedef struct kvstrata_window_args {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t row_bytes;
  uint64_t capacity; /* ring rows */
  uint64_t position;
  uint64_t rows;
  void* ring; /* [capacity][row_bytes]; export: only read */
  uint64_t ring_stride_bytes;
  void* linear; /* [rows][row_bytes]; append and import: only read */
  uint64_t linear_stride_bytes;
} kvstrata_window_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Selection
 */

enum { KVSTRATA_KERNELS_SCORES_ROUND_BF16 = 1 /* round each score to bf16 at the end */ };

/* index_scores: I[t][s] = sum_h (weights[t][h] * scale) * max(0, q[t][h] . k[s]) for visible s, fp32 throughout, heads
 * ascending; -infinity for entries that are not visible. Query n has position first_position + n. The keys are those of
 * entries first_entry .. first_entry+entries-1, so that a scan can be cut; score s is that of entry first_entry + s.
 * Keys are rows of key_type, or packed rows (key_format V4_INDEX_FP4 or V4_INDEX_FP8, default width), which mean
 * exactly what unpack_rows gives. BF16 queries against BF16 or packed keys: a level may use the machine's bf16 dot
 * product, whose products are exact and whose sums are fp32 in an order of its own, denormal bf16 inputs and partial
 * sums counting as 0. A level may reorder sums; two levels differ by at most
 * 2 * (width + heads) * 2^-24 * sum_h |weight * scale| * sum_c |q k|. */
typedef struct kvstrata_index_scores_args {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t heads;
  uint32_t width;
  uint32_t ratio;
  float scale; /* 0 means width^-0.5 * heads^-0.5 */
  uint64_t tokens;
  uint64_t first_position;
  uint64_t entries;
  const void* queries;   /* [tokens][heads][width] of query_type, heads tight */
  uint64_t query_stride; /* between tokens */
  const void* keys;      /* [entries][width] of key_type; with a key_format not used */
  uint64_t key_stride;
  const float* weights; /* [tokens][heads] */
  uint64_t weight_stride;
  float* scores; /* [tokens][entries] */
  uint64_t score_stride;
  uint64_t first_entry;
  int32_t query_type; /* F32 or BF16 */
  int32_t key_type;   /* F32 or BF16; with a key_format 0 */
  int32_t key_format; /* FORMAT_NONE, V4_INDEX_FP4 or V4_INDEX_FP8 */
  uint32_t reserved0;
  kvstrata_packed_planes packed_keys; /* only read */
  void* workspace;                    /* aligned to 4 */
  uint64_t workspace_bytes;
} kvstrata_index_scores_args;

enum { KVSTRATA_KERNELS_TOPK_SORT_ASCENDING = 1 /* the chosen by index instead of by rank */ };

/* topk: for each query the k best of the visible entries. Exact. Rank: the higher score first, of equal scores the
 * lower index first; +0 and -0 are equal; NaN ranks below every number. Output by rank (or by ascending index), then
 * -1 in the places left over (fewer than k visible entries). A score of an entry that is not visible is never read. */
typedef struct kvstrata_topk_args {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t k;
  uint32_t ratio;
  uint64_t tokens;
  uint64_t first_position;
  uint64_t entries;    /* at most INT32_MAX */
  const float* scores; /* [tokens][entries] */
  uint64_t score_stride;
  int32_t* indices; /* [tokens][k] */
  uint64_t index_stride;
  void* workspace;
  uint64_t workspace_bytes;
} kvstrata_topk_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Attention
 */

/* Rotate the output's last rope_dims back by the query's position. */
enum { KVSTRATA_KERNELS_ATTENTION_INVERSE_ROPE = 1 };

/*
 * attention: for each query and head one softmax over the window rows of positions max(window_first, t-window+1) ..
 * t, then the compressed entries, and the head's sink, which enters the denominator only. Keys are the values.
 *   logits l_s = (q . kv_s) * scale; mx = max over all l_s and the sink;
 *   o = sum_s exp(l_s - mx) kv_s / (sum_s exp(l_s - mx) + exp(sink - mx)), summed in the order just given.
 * Entries: with picks, those of the query's list in list order (-1 skips; any other index must be visible and <
 * entry_count); without picks (NULL), all visible ones ascending (all must be there: entry_count >=
 * floor((t+1)/ratio)); ratio 0: none. Window rows: position p is row p - window_first, or row p mod window_ring when
 * window_ring is not 0. The rows of the last query must be there: window_first + window_rows > t (ring: window_rows
 * <= window_ring). Profiles Q and S: probabilities are rounded to bf16 for the products with kv (the denominator adds
 * unrounded ones), the output is rounded to bf16, and again after the inverse rotation.
 *
 * Rows of the window and of the entries are rows of their type, or packed rows of their format (V4_ROW, V41_WINDOW or
 * V41_ENTRY of this width; V4_ROW with rope_dims), which mean exactly what unpack_rows gives. BF16 queries against BF16
 * or packed rows in profiles Q and S: a level may use the machine's bf16 dot product as in index_scores. A level may
 * reorder sums, and may take mx from a prefix of the rows and rescale (online softmax).
 *
 * Two levels differ in an output of channel c, seen over n rows of which the largest |kv_sc| is A, by at most
 *   E = 4 * ((width + 4) * |scale| * max_s sum_c |q_c kv_sc| + n + 96) * 2^-24 * A
 * in profile F: a logit is off by at most (width + 4) * 2^-24 times the sum of its magnitudes; subtracting mx (87 at
 * most where a probability is not 0), exp and the division add 96 units, the sums one a row; numerator and denominator
 * each, in both levels. Profiles Q and S: E + 2^-6 A, for each probability, and the output, may be rounded to either
 * neighbour (2^-7). After the inverse rotation, with A of either channel of the pair: 1.5 times that, and in Q and S
 * 2^-6 A more for the second rounding of the output (a rotation enlarges a channel at most by the root of 2).
 */
typedef struct kvstrata_attention_args {
  uint32_t struct_size;
  int32_t profile;
  uint32_t flags;
  uint32_t heads;
  uint32_t width;
  uint32_t rope_dims; /* for INVERSE_ROPE */
  uint32_t window;    /* W, counts the query itself; >= 1 */
  uint32_t ratio;
  uint32_t pick_count;
  float scale; /* 0 means width^-0.5 */
  uint64_t tokens;
  uint64_t first_position;
  const void* queries; /* [tokens][heads][width] of query_type */
  uint64_t query_token_stride;
  uint64_t query_head_stride;
  const void* window_kv; /* [window_rows][width] of window_type; with a window_format not used */
  uint64_t window_stride;
  uint64_t window_first; /* position of the oldest row */
  uint64_t window_rows;
  uint64_t window_ring; /* 0: linear */
  const void* entries;  /* [entry_count][width] of entry_type; with an entry_format not used */
  uint64_t entry_stride;
  uint64_t entry_count;
  const int32_t* picks; /* [tokens][pick_count] */
  uint64_t pick_stride;
  const float* sinks;       /* [heads], or NULL: none */
  const float* frequencies; /* [rope_dims/2], for INVERSE_ROPE */
  void* output;             /* [tokens][heads][width] of output_type */
  uint64_t output_token_stride;
  uint64_t output_head_stride;
  void* workspace; /* aligned to 4 */
  uint64_t workspace_bytes;
  int32_t query_type;    /* F32 or BF16 */
  int32_t output_type;   /* F32, or BF16: rounded at the very end */
  int32_t window_type;   /* F32 or BF16; with a window_format 0 */
  int32_t window_format; /* FORMAT_NONE or a packed format */
  int32_t entry_type;    /* F32 or BF16; with an entry_format 0 */
  int32_t entry_format;  /* FORMAT_NONE or a packed format */
  kvstrata_packed_planes packed_window;  /* [window_rows or window_ring]; only read */
  kvstrata_packed_planes packed_entries; /* [entry_count]; only read */
} kvstrata_attention_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Movement between a contiguous block of rows and an engine's pages
 */

/* A column segment: `bytes` bytes at block_offset of each block row are the bytes at page_offset + slot *
 * page_row_stride of the row's page. A planar V4 page of B rows is two of them: {0, 0, 576, 576} and {576, B*576, 8,
 * 8}. Never grows. */
typedef struct kvstrata_segment {
  uint64_t block_offset;
  uint64_t page_offset;
  uint64_t page_row_stride;
  uint64_t bytes;
} kvstrata_segment;

/* gather_rows: pages to block. scatter_rows: block to pages. Logical row r = first_row + n lies in page
 * page_ids[r / rows_per_page] at slot r mod rows_per_page; the page begins at pages + id * page_stride_bytes. Id -1
 * skips the row: neither side is touched. Only the bytes of the segments are written. The bytes that the segments of
 * a page take must not overlap each other. */
typedef struct kvstrata_move_args {
  uint32_t struct_size;
  int32_t page_id_type; /* INT32 or INT64 */
  uint64_t rows;
  uint64_t first_row;
  uint64_t rows_per_page;
  const void* page_ids;
  uint64_t page_id_count; /* length of page_ids; must reach the last row's page */
  uint64_t page_limit;    /* ids must be below; 0: not checked */
  void* pages;            /* gather: only read */
  uint64_t page_stride_bytes;
  void* block;                 /* [rows][...]; scatter: only read */
  uint64_t block_stride_bytes; /* 0: the largest block_offset + bytes */
  const kvstrata_segment* segments;
  uint64_t segment_count;
} kvstrata_move_args;

/* ---------------------------------------------------------------------------------------------------------------
 * Projection
 */

enum { KVSTRATA_KERNELS_PROJECT_ROUND_BF16 = 1 /* round each output to bf16 */ };

/* project: y[n][o] = sum_k x[n][k] * weights[o][k], fp32; BF16 inputs and weights are widened exactly. The order of
 * summation is part of the contract of the reference and cpu levels: 16 lanes, lane l adds the products k = l, l+16,
 * l+32, ... in ascending order (product rounded, then added), then lane l gets lane l+8 added for l < 8, l+4 for l < 4,
 * l+2 for l < 2, and lane 1 is added to lane 0. So an output depends on nothing but its own row and weights. */
typedef struct kvstrata_project_args {
  uint32_t struct_size;
  int32_t weight_type; /* F32 or BF16 */
  uint32_t flags;
  uint32_t reserved0;
  uint64_t tokens;
  uint64_t inputs;
  uint64_t outputs;
  const float* x; /* [tokens][inputs] of x_type; the pointer's own type is that of F32 */
  uint64_t x_stride;
  const void* weights; /* [outputs][inputs] */
  uint64_t weight_stride;
  float* y; /* [tokens][outputs] */
  uint64_t y_stride;
  void* workspace;
  uint64_t workspace_bytes;
  int32_t x_type; /* F32 or BF16 */
  uint32_t reserved1;
} kvstrata_project_args;

/* ---------------------------------------------------------------------------------------------------------------
 * The table. Members are only appended; a caller that finds struct_size smaller than the offset of a member must not
 * read it. Every pointer is non-NULL; what a level lacks returns UNSUPPORTED.
 */
typedef struct kvstrata_kernels {
  uint32_t struct_size;
  uint32_t level;
  const char* name; /* static text, e.g. "reference" */

  int32_t (*packed_shape)(kvstrata_packed_shape* shape); /* on the host, no stream */
  int32_t (*pack_rows)(const kvstrata_pack_rows_args* args, void* stream);
  int32_t (*unpack_rows)(const kvstrata_unpack_rows_args* args, void* stream);
  int32_t (*quantize_dequantize)(const kvstrata_quantize_args* args, void* stream);
  int32_t (*f32_to_bf16)(const kvstrata_convert_args* args, void* stream);
  int32_t (*bf16_to_f32)(const kvstrata_convert_args* args, void* stream);
  int32_t (*bf16_round)(const kvstrata_convert_args* args, void* stream);
  int32_t (*hadamard)(const kvstrata_hadamard_args* args, void* stream);

  int32_t (*rope_frequencies)(const kvstrata_rope_frequencies_args* args, void* stream);
  int32_t (*rope)(const kvstrata_rope_args* args, void* stream);
  int32_t (*rms_norm)(const kvstrata_rms_norm_args* args, void* stream);

  int32_t (*csa_pool)(const kvstrata_pool_args* args, void* stream);
  int32_t (*hca_pool)(const kvstrata_pool_args* args, void* stream);
  int32_t (*emit_entries)(const kvstrata_emit_entries_args* args, void* stream);
  int32_t (*compress)(const kvstrata_compress_args* args, void* stream);
  int32_t (*compress_workspace_bytes)(const kvstrata_compress_args* args, uint64_t* out_bytes);

  int32_t (*window_append)(const kvstrata_window_args* args, void* stream);
  int32_t (*window_import)(const kvstrata_window_args* args, void* stream);
  int32_t (*window_export)(const kvstrata_window_args* args, void* stream);

  int32_t (*index_scores)(const kvstrata_index_scores_args* args, void* stream);
  int32_t (*index_scores_workspace_bytes)(const kvstrata_index_scores_args* args, uint64_t* out_bytes);
  int32_t (*topk)(const kvstrata_topk_args* args, void* stream);
  int32_t (*topk_workspace_bytes)(const kvstrata_topk_args* args, uint64_t* out_bytes);

  int32_t (*attention)(const kvstrata_attention_args* args, void* stream);
  int32_t (*attention_workspace_bytes)(const kvstrata_attention_args* args, uint64_t* out_bytes);

  int32_t (*gather_rows)(const kvstrata_move_args* args, void* stream);
  int32_t (*scatter_rows)(const kvstrata_move_args* args, void* stream);

  int32_t (*project)(const kvstrata_project_args* args, void* stream);
  int32_t (*project_workspace_bytes)(const kvstrata_project_args* args, uint64_t* out_bytes);
} kvstrata_kernels;

/* The table of a level, or NULL where that level is not there. Static, valid for ever, may be called from any thread.
 * */
KVSTRATA_API const kvstrata_kernels* kvstrata_kernels_get(int32_t level);

#ifdef __cplusplus
}
#endif

#endif /* KVSTRATA_KERNELS_H */
