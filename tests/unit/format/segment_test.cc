// SPDX-License-Identifier: Apache-2.0
// The structures of the segment store: each field at its documented place, no changed byte accepted.
#include "lib/format/segment.h"

#include <string>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;
using base::Code;
using base::CodeOf;

namespace {

template <typename T>
T At(base::ByteView bytes, size_t offset) {
  return base::LoadLittleEndian<T>(bytes.data() + offset);
}

format::StoreId Store() {
  format::StoreId store{};
  for (size_t i = 0; i < store.size(); ++i) store[i] = static_cast<std::byte>(0x10 + i);
  return store;
}

format::LogEntry PutEntry(size_t meta_bytes) {
  format::LogEntry entry;
  entry.key.fill(std::byte{0x77});
  entry.sequence = 0x0102030405060708;
  entry.payload_bytes = 2 * 4096 + 1;
  entry.extents = {{3, 100, 2}, {4, 5, 1}};
  entry.meta.resize(meta_bytes, std::byte{0x4D});
  return entry;
}

constexpr uint64_t kSalt = 0x1122334455667788;

std::vector<std::byte> Encode(const format::LogEntry& entry, uint64_t offset = 4096) {
  std::vector<std::byte> bytes;
  format::AppendEntry(entry, kSalt, offset, &bytes);
  return bytes;
}

Code Refusal(base::ByteView bytes, uint64_t offset = 4096) {
  uint64_t size = 0;
  return CodeOf(format::DecodeEntry(bytes, kSalt, offset, &size).status());
}

// As FORMAT.md says: the whole entry without its checksum, seeded with salt + offset.
void Reseal(std::vector<std::byte>* entry, uint64_t offset = 4096) {
  std::vector<std::byte> rest(entry->begin(), entry->begin() + 8);
  rest.insert(rest.end(), entry->begin() + 16, entry->end());
  base::StoreLittleEndian(entry->data() + 8, base::Checksum(rest, kSalt + offset));
}

}  // namespace

TEST_CASE("a superblock has its fields where they are documented") {
  const format::Superblock superblock{Store(), 7, 64 << 20};
  const auto bytes = format::EncodeSuperblock(superblock);
  CHECK(base::AsText(base::ByteView(bytes).first(8)) == "KVSSUP\xFF\n");
  CHECK(At<uint32_t>(bytes, 8) == 1);
  CHECK(At<uint32_t>(bytes, 12) == 64);
  CHECK(bytes[16] == std::byte{0x10});
  CHECK(At<uint64_t>(bytes, 32) == 7);
  CHECK(At<uint64_t>(bytes, 40) == 64 << 20);
  CHECK(At<uint64_t>(bytes, 48) == 0);
  CHECK(At<uint64_t>(bytes, 56) == base::Checksum(base::ByteView(bytes).first(56), 0));
  CHECK(format::DecodeSuperblock(bytes).value() == superblock);
}

TEST_CASE("no changed or missing byte of a superblock or a header is accepted") {
  const auto super = format::EncodeSuperblock({Store(), 7, 64 << 20});
  const auto header = format::EncodeLogHeader({format::LogKind::kCheckpoint, Store(), 7, 3, kSalt, 10, 800});
  for (size_t i = 0; i < super.size(); ++i) {
    CAPTURE(i);
    auto bad = super;
    bad[i] ^= std::byte{1};
    CHECK_FALSE(format::DecodeSuperblock(bad).ok());
    CHECK(CodeOf(format::DecodeSuperblock(base::ByteView(super).first(i)).status()) == Code::kCorrupt);
  }
  for (size_t i = 0; i < header.size(); ++i) {
    CAPTURE(i);
    auto bad = header;
    bad[i] ^= std::byte{1};
    CHECK_FALSE(format::DecodeLogHeader(bad, format::LogKind::kCheckpoint).ok());
    CHECK_FALSE(format::DecodeLogHeader(base::ByteView(header).first(i), format::LogKind::kCheckpoint).ok());
  }
  CHECK(base::FieldOf(format::DecodeLogHeader(header, format::LogKind::kJournal).status()) == "magic");
}

TEST_CASE("a later version is told from a damaged one, before anything behind it is looked at") {
  auto super = format::EncodeSuperblock({Store(), 7, 64 << 20});
  base::StoreLittleEndian(super.data() + 8, uint32_t{2});
  CHECK(CodeOf(format::DecodeSuperblock(super).status()) == Code::kFormatTooNew);
  auto header = format::EncodeLogHeader({format::LogKind::kJournal, Store(), 7, 3, kSalt, 0, 0});
  base::StoreLittleEndian(header.data() + 8, uint32_t{2});
  CHECK(CodeOf(format::DecodeLogHeader(header, format::LogKind::kJournal).status()) == Code::kFormatTooNew);
}

TEST_CASE("a superblock that could not be is refused though its checksum is right") {
  const auto refusal = [](uint64_t epoch, uint64_t segment_bytes) {
    return base::FieldOf(format::DecodeSuperblock(format::EncodeSuperblock({Store(), epoch, segment_bytes})).status());
  };
  CHECK(refusal(0, 4096) == "epoch");
  CHECK(refusal(1, 0) == "segment_bytes");
  CHECK(refusal(1, 4097) == "segment_bytes");
  CHECK(refusal(1, uint64_t{1} << 60) == "segment_bytes");
}

TEST_CASE("a header of a log has its fields where they are documented") {
  const format::LogHeader header{format::LogKind::kCheckpoint, Store(), 7, 3, kSalt, 10, 800};
  const auto bytes = format::EncodeLogHeader(header);
  CHECK(base::AsText(base::ByteView(bytes).first(8)) == "KVSCKP\xFF\n");
  CHECK(At<uint32_t>(bytes, 12) == 80);
  CHECK(At<uint64_t>(bytes, 32) == 7);
  CHECK(At<uint64_t>(bytes, 40) == 3);
  CHECK(At<uint64_t>(bytes, 48) == kSalt);
  CHECK(At<uint64_t>(bytes, 56) == 10);
  CHECK(At<uint64_t>(bytes, 64) == 800);
  CHECK(At<uint64_t>(bytes, 72) == base::Checksum(base::ByteView(bytes).first(72), 0));
  CHECK(format::DecodeLogHeader(bytes, format::LogKind::kCheckpoint).value() == header);
  const auto journal = format::EncodeLogHeader({format::LogKind::kJournal, Store(), 7, 3, kSalt, 0, 0});
  CHECK(base::AsText(base::ByteView(journal).first(8)) == "KVSJRN\xFF\n");
  const auto counted = format::EncodeLogHeader({format::LogKind::kJournal, Store(), 7, 3, kSalt, 1, 0});
  CHECK(base::FieldOf(format::DecodeLogHeader(counted, format::LogKind::kJournal).status()) == "entries");
}

TEST_CASE("an entry has its fields where they are documented, and the next may follow it") {
  const format::LogEntry entry = PutEntry(5);
  std::vector<std::byte> bytes = Encode(entry);
  REQUIRE(bytes.size() == 104);  // 72 + 2 * 12 + 5, up to a multiple of 8
  CHECK(At<uint32_t>(bytes, 0) == 104);
  CHECK(At<uint8_t>(bytes, 4) == 1);
  CHECK(At<uint8_t>(bytes, 5) == 2);
  CHECK(At<uint16_t>(bytes, 6) == 5);
  CHECK(At<uint64_t>(bytes, 16) == entry.sequence);
  CHECK(bytes[24] == std::byte{0x77});
  CHECK(At<uint64_t>(bytes, 56) == 8193);
  CHECK(At<uint64_t>(bytes, 64) == 0);
  CHECK(At<uint32_t>(bytes, 72) == 3);
  CHECK(At<uint32_t>(bytes, 76) == 100);
  CHECK(At<uint32_t>(bytes, 80) == 2);
  CHECK(At<uint32_t>(bytes, 92) == 1);
  CHECK(bytes[96] == std::byte{0x4D});
  std::vector<std::byte> again = bytes;
  Reseal(&again);
  CHECK(again == bytes);
  uint64_t size = 0;
  CHECK(format::DecodeEntry(bytes, kSalt, 4096, &size).value() == entry);
  CHECK(size == 104);
  bytes.resize(bytes.size() + 50, std::byte{0xEE});
  CHECK(format::DecodeEntry(bytes, kSalt, 4096, &size).value() == entry);
}

TEST_CASE("entries of every shape come back as they were") {
  std::vector<format::LogEntry> entries = {PutEntry(0), PutEntry(128), PutEntry(4096), {}};
  entries[3].kind = format::EntryKind::kRemove;
  format::LogEntry empty;  // no payload, no meta: legal
  entries.push_back(empty);
  format::LogEntry wide = PutEntry(3);
  wide.extents.clear();
  for (uint32_t i = 0; i < 8; ++i) wide.extents.push_back({i, i * 10, 1});
  wide.payload_bytes = 8 * 4096;
  entries.push_back(wide);
  for (const format::LogEntry& entry : entries) {
    const std::vector<std::byte> bytes = Encode(entry);
    CHECK(bytes.size() == format::EntryBytes(entry));
    uint64_t size = 0;
    CHECK(format::DecodeEntry(bytes, kSalt, 4096, &size).value() == entry);
    CHECK(size == bytes.size());
  }
}

TEST_CASE("no changed or missing byte of an entry is accepted, nor one at another place or of another file") {
  const std::vector<std::byte> bytes = Encode(PutEntry(5));
  for (size_t i = 0; i < bytes.size(); ++i) {
    CAPTURE(i);
    std::vector<std::byte> bad = bytes;
    bad[i] ^= std::byte{0x80};
    CHECK(Refusal(bad) == Code::kCorrupt);
    CHECK(Refusal(base::ByteView(bytes).first(i)) == Code::kCorrupt);
  }
  CHECK(Refusal(bytes, 4096 + 104) == Code::kCorrupt);
  uint64_t size = 0;
  CHECK_FALSE(format::DecodeEntry(bytes, kSalt + 1, 4096, &size).ok());
  CHECK(Refusal(std::vector<std::byte>(200)) == Code::kCorrupt);
}

TEST_CASE("an entry that could not be is refused though its checksum is right") {
  const auto field = [](size_t offset, uint8_t value, const format::LogEntry& entry = PutEntry(5)) {
    std::vector<std::byte> bytes = Encode(entry);
    bytes[offset] = static_cast<std::byte>(value);
    Reseal(&bytes);
    uint64_t size = 0;
    return base::FieldOf(format::DecodeEntry(bytes, kSalt, 4096, &size).status());
  };
  CHECK(field(4, 0) == "kind");
  CHECK(field(4, 3) == "kind");
  CHECK(field(4, 2) == "extents");        // a removal has none
  CHECK(field(5, 9) == "extents");        // more than eight
  CHECK(field(5, 1) == "extents");        // one unit short of the payload
  CHECK(field(7, 0x10) == "meta_bytes");  // 4101
  CHECK(field(6, 4) == "padding");        // the fifth byte of meta where a zero should be
  CHECK(field(6, 9) == "entry_bytes");
  CHECK(field(64, 1) == "last_use");
  CHECK(field(80, 0) == "extents");  // of no unit
  CHECK(field(80, 1) == "extents");
  CHECK(field(103, 1) == "padding");
}
