// SPDX-License-Identifier: Apache-2.0
#include "lib/format/file_record.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/random.h"
#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;

namespace {

using HeaderBytes = std::array<std::byte, format::kFileRecordHeaderBytes>;

format::FileRecordHeader Sample() {
  format::FileRecordHeader header;
  for (size_t i = 0; i < header.key.size(); ++i) header.key[i] = static_cast<std::byte>(i + 1);
  header.payload_bytes = 1000;
  header.meta_bytes = 50;
  header.sequence = 0x0102030405060708u;
  header.payload_checksum = 0x1112131415161718u;
  header.meta_checksum = 0x2122232425262728u;
  return header;
}

constexpr uint64_t kSampleFileBytes = 96 + 50 + 1000;

// Puts a new value into a field and makes the header's checksum right again: a mistake that is not a flipped bit.
template <typename T>
HeaderBytes Patched(HeaderBytes bytes, size_t offset, T value) {
  base::StoreLittleEndian(bytes.data() + offset, value);
  const uint64_t sequence = base::LoadLittleEndian<uint64_t>(bytes.data() + 64);
  base::StoreLittleEndian(bytes.data() + 88, base::Checksum(base::ByteView(bytes).first(88), sequence));
  return bytes;
}

absl::Status Decode(const HeaderBytes& bytes, uint64_t file_bytes = kSampleFileBytes) {
  return format::DecodeFileRecordHeader(bytes, file_bytes, Sample().key).status();
}

}  // namespace

TEST_CASE("the header's fields lie where FORMAT.md says") {
  const format::FileRecordHeader header = Sample();
  const HeaderBytes bytes = format::EncodeFileRecordHeader(header);
  const std::string magic = "KVSREC\xFF\n";
  CHECK(base::AsText(bytes).substr(0, 8) == magic);
  CHECK(base::LoadLittleEndian<uint32_t>(&bytes[8]) == 1);
  CHECK(base::LoadLittleEndian<uint32_t>(&bytes[12]) == 96);
  CHECK(std::equal(header.key.begin(), header.key.end(), &bytes[16]));
  CHECK(base::LoadLittleEndian<uint64_t>(&bytes[48]) == 1000);
  CHECK(base::LoadLittleEndian<uint32_t>(&bytes[56]) == 50);
  CHECK(base::LoadLittleEndian<uint32_t>(&bytes[60]) == 0);
  CHECK(base::LoadLittleEndian<uint64_t>(&bytes[64]) == header.sequence);
  CHECK(base::LoadLittleEndian<uint64_t>(&bytes[72]) == header.payload_checksum);
  CHECK(base::LoadLittleEndian<uint64_t>(&bytes[80]) == header.meta_checksum);
  CHECK(base::LoadLittleEndian<uint64_t>(&bytes[88]) ==
        base::Checksum(base::ByteView(bytes).first(88), header.sequence));
}

TEST_CASE("a header comes back as it was written") {
  const format::FileRecordHeader header = Sample();
  const HeaderBytes bytes = format::EncodeFileRecordHeader(header);
  const auto decoded = format::DecodeFileRecordHeader(bytes, kSampleFileBytes, header.key);
  REQUIRE(decoded.ok());
  CHECK(decoded->key == header.key);
  CHECK(decoded->payload_bytes == header.payload_bytes);
  CHECK(decoded->meta_bytes == header.meta_bytes);
  CHECK(decoded->sequence == header.sequence);
  CHECK(decoded->payload_checksum == header.payload_checksum);
  CHECK(decoded->meta_checksum == header.meta_checksum);
  CHECK(decoded->PayloadOffset() == 96 + 50);
}

TEST_CASE("every flipped bit is an error that names its field") {
  struct Field {
    size_t begin, end;
    const char* name;
  };
  // The sequence and the checksums cannot be wrong by themselves: the header's checksum tells.
  const std::vector<Field> fields = {{0, 8, "magic"},      {8, 12, "version"},         {12, 16, "header_bytes"},
                                     {16, 48, "key"},      {48, 56, "payload_bytes"},  {56, 60, "meta"},
                                     {60, 64, "reserved"}, {64, 96, "header_checksum"}};
  const HeaderBytes good = format::EncodeFileRecordHeader(Sample());
  for (const Field& field : fields) {
    for (size_t bit = 8 * field.begin; bit < 8 * field.end; ++bit) {
      CAPTURE(field.name, bit);
      HeaderBytes bytes = good;
      bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      const absl::Status status = Decode(bytes);
      const bool version = std::string(field.name) == "version";
      const bool too_new = base::CodeOf(status) == base::Code::kFormatTooNew;
      REQUIRE((base::CodeOf(status) == base::Code::kCorrupt || (version && too_new)));
      // A small change of the meta's size does not exceed its limit, and shows in the sum of the sizes.
      const std::string found = base::FieldOf(status);
      const bool meta = std::string(field.name) == "meta" && (found == "meta_bytes" || found == "payload_bytes");
      REQUIRE((found == field.name || meta));
    }
  }
}

TEST_CASE("a wrong value under a right checksum is found too") {
  const HeaderBytes good = format::EncodeFileRecordHeader(Sample());
  CHECK(base::CodeOf(Decode(Patched<uint32_t>(good, 8, 2))) == base::Code::kFormatTooNew);
  CHECK(base::FieldOf(Decode(Patched<uint32_t>(good, 8, 0))) == "version");
  CHECK(base::FieldOf(Decode(Patched<uint32_t>(good, 12, 95))) == "header_bytes");
  CHECK(base::FieldOf(Decode(Patched<uint32_t>(good, 56, 4097))) == "meta_bytes");
  CHECK(base::FieldOf(Decode(Patched<uint32_t>(good, 60, 1))) == "reserved");
  // Sizes whose sum wraps around to the right one.
  CHECK(base::FieldOf(Decode(Patched<uint64_t>(good, 48, UINT64_MAX - 10))) == "payload_bytes");
  CHECK(base::FieldOf(Decode(Patched<uint64_t>(good, 48, UINT64_MAX - 145), 0)) == "payload_bytes");
  const absl::Status other_key = Decode(Patched<uint64_t>(good, 16, 0));
  CHECK(base::CodeOf(other_key) == base::Code::kNotFound);
  CHECK(base::FieldOf(other_key) == "key");
}

TEST_CASE("a file of another size than its header says is corrupt") {
  const HeaderBytes good = format::EncodeFileRecordHeader(Sample());
  for (const uint64_t bytes : {uint64_t{96}, kSampleFileBytes - 1, kSampleFileBytes + 1, UINT64_MAX}) {
    CAPTURE(bytes);
    CHECK(base::FieldOf(Decode(good, bytes)) == "payload_bytes");
  }
  for (size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    const auto decoded = format::DecodeFileRecordHeader(base::ByteView(good).first(size), size, Sample().key);
    REQUIRE(base::CodeOf(decoded.status()) == base::Code::kCorrupt);
  }
}

TEST_CASE("random bytes are never a header") {
  const uint64_t seed = 7;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  for (int round = 0; round < 2000; ++round) {
    HeaderBytes bytes = format::EncodeFileRecordHeader(Sample());
    // From the whole header down to its last bytes, so that each check is reached.
    const size_t from = random.Below(bytes.size());
    REQUIRE(random.Fill(base::MutableBytes(bytes).subspan(from)).ok());
    REQUIRE_FALSE(Decode(bytes).ok());
  }
}
