// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/meta_frame.h"

#include <zstd.h>

#include <cstdint>

#include "lib/base/status.h"

namespace kvstrata::core::codec {
namespace {

enum class Method : uint8_t { kStored = 0, kZstd = 1 };

// Metadata is small and written once per block: a middle level costs microseconds.
constexpr int kLevel = 3;

std::string Header(Method method, size_t plain_size) {
  std::string header(1, static_cast<char>(method));
  for (int i = 0; i < 4; ++i) header += static_cast<char>(static_cast<uint8_t>(plain_size >> (8 * i)));
  return header;
}

absl::Status BadFrame(const std::string& problem) { return base::Corrupt("meta_frame", problem); }

// The payload must be one zstd frame, nothing else, of exactly `plain_size` bytes; the output buffer is the bound.
absl::StatusOr<std::string> Inflate(std::string_view payload, size_t plain_size) {
  if (ZSTD_findFrameCompressedSize(payload.data(), payload.size()) != payload.size()) {
    return BadFrame("not exactly one zstd frame");
  }
  if (ZSTD_getFrameContentSize(payload.data(), payload.size()) != plain_size) {
    return BadFrame("the zstd frame holds another size");
  }
  std::string plain(plain_size, '\0');
  const size_t written = ZSTD_decompress(plain.data(), plain.size(), payload.data(), payload.size());
  if (ZSTD_isError(written) != 0) return BadFrame(ZSTD_getErrorName(written));
  if (written != plain_size) return BadFrame("the zstd frame is short");
  return plain;
}

}  // namespace

absl::StatusOr<std::string> EncodeMeta(std::string_view plain) {
  if (plain.size() > kMaxMetaBytes) {
    return base::MakeStatus(base::Code::kTooLarge, "meta",
                            std::to_string(plain.size()) + " bytes, the most is " + std::to_string(kMaxMetaBytes));
  }
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), kLevel);
  // A compressor out of memory is no reason to fail: stored is always right.
  if (ZSTD_isError(size) != 0 || size >= plain.size())
    return Header(Method::kStored, plain.size()) + std::string(plain);
  packed.resize(size);
  return Header(Method::kZstd, plain.size()) + packed;
}

absl::StatusOr<std::string> DecodeMeta(std::string_view frame, size_t max_plain_bytes) {
  if (frame.size() < kMetaFrameHeaderBytes) return BadFrame(std::to_string(frame.size()) + " bytes are no frame");
  size_t plain_size = 0;
  for (size_t i = 0; i < 4; ++i) plain_size |= size_t{static_cast<uint8_t>(frame[1 + i])} << (8 * i);
  if (plain_size > max_plain_bytes || plain_size > kMaxMetaBytes) {
    return BadFrame(std::to_string(plain_size) + " plain bytes, the most is " + std::to_string(max_plain_bytes));
  }
  const std::string_view payload = frame.substr(kMetaFrameHeaderBytes);
  switch (static_cast<Method>(frame[0])) {
    case Method::kStored:
      if (payload.size() != plain_size) return BadFrame(std::to_string(payload.size()) + " bytes stored, not as said");
      return std::string(payload);
    case Method::kZstd: return Inflate(payload, plain_size);
  }
  return BadFrame("method " + std::to_string(static_cast<uint8_t>(frame[0])) + " is not known");
}

}  // namespace kvstrata::core::codec
