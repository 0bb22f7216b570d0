// SPDX-License-Identifier: Apache-2.0
// Calls on writers.
#include <algorithm>
#include <vector>

#include "tests/fuzz/capi/session.h"

namespace kvstrata::fuzz {

void Session::WriterOpen() {
  auto options = Sized<kvstrata_writer_options>();
  options.wait_ms = 1 + in_.Below(10);
  if (in_.OneIn(3)) {
    options.flags = in_.OneIn(2) ? in_.Number32(7) : 0;
    options.restart_multiple = in_.Number32(16);
    options.start_tokens = in_.OneIn(4) ? in_.Number(100) : 0;
    options.plan = in_.OneIn(4) ? plans_.Pick(in_) : nullptr;
    options.priority = in_.Choice({KVSTRATA_PRIORITY_NORMAL, KVSTRATA_PRIORITY_LOW, KVSTRATA_PRIORITY_HIGH});
    options.ttl_seconds = in_.OneIn(4) ? in_.Number32(2) : 0;
  }
  const Input<kvstrata_writer_options> input(in_, options);
  const kvstrata_match* match = in_.OneIn(2) ? matches_.Pick(in_) : nullptr;
  ErrorOutput error(in_);
  kvstrata_writer* made = Stray<kvstrata_writer>();
  Take("kvstrata_writer_open", kvstrata_writer_open(spaces_.Pick(in_), match, input.get(), OrNull(&made), error.get()),
       error, made, writers_);
}

void Session::WriterSource() {
  const Input<kvstrata_buffer> source(in_, StrayBuffer());
  ErrorOutput error(in_);
  Judge("kvstrata_writer_set_source", kvstrata_writer_set_source(writers_.Pick(in_), source.get(), error.get()), error);
}

// What an engine does: sources for all streams (of the newest namespace: another writer's may differ), then a step.
void Session::WriterFeed() {
  constexpr uint64_t kRows = 256;  // of a rows stream, or positions of a state stream
  kvstrata_writer* writer = writers_.Pick(in_);
  for (uint32_t i = 0; i < fed_streams_.size() && i < 8; ++i) {
    const kvstrata_stream& stream = fed_streams_[i];
    const bool opaque = stream.row_bytes == 0;
    const uint64_t rows = opaque ? 1 : std::min<uint64_t>(std::max<uint64_t>(stream.state_rows, kRows), 4096);
    const Input<kvstrata_buffer> source(in_, Buffer(i, rows, 0, opaque ? in_.Below(300) : stream.row_bytes));
    ErrorOutput error(in_);
    Judge("kvstrata_writer_set_source", kvstrata_writer_set_source(writer, source.get(), error.get()), error);
  }
  // From the start again, or else only an empty writer could do it.
  if (in_.OneIn(2)) kvstrata_writer_truncate(writer, 0, nullptr);
  const std::vector<int32_t> ids = Ids();
  const TokenArguments tokens(in_, ids);
  ErrorOutput error(in_);
  LetGo();
  Judge("kvstrata_writer_advance", kvstrata_writer_advance(writer, tokens.get(), ids.size(), error.get()), error);
}

void Session::WriterAdvance() {
  const TokenArguments tokens(in_, Ids());
  ErrorOutput error(in_);
  LetGo();
  Judge(
      "kvstrata_writer_advance",
      kvstrata_writer_advance(writers_.Pick(in_), in_.OneIn(3) ? nullptr : tokens.get(), in_.Number(300), error.get()),
      error);
}

void Session::WriterWork() {
  kvstrata_writer* writer = writers_.Pick(in_);
  ErrorOutput error(in_);
  switch (in_.Below(4)) {
    case 0: LetGo(); return Judge("kvstrata_writer_snapshot", kvstrata_writer_snapshot(writer, error.get()), error);
    case 1:
      return Judge("kvstrata_writer_truncate", kvstrata_writer_truncate(writer, in_.Number(200), error.get()), error);
    case 2: {
      kvstrata_writer* made = Stray<kvstrata_writer>();
      return Take("kvstrata_writer_fork", kvstrata_writer_fork(writer, OrNull(&made), error.get()), error, made,
                  writers_);
    }
    default: {
      const TokenArguments prompt(in_, Ids());
      OutputArray<uint64_t> positions(in_, in_.Below(6), 77);
      OutputArray<uint64_t> count(in_, 1, 77);
      const kvstrata_status status = kvstrata_writer_snapshot_positions(writer, prompt.get(), positions.get(),
                                                                        positions.size(), count.get(), error.get());
      // The number is told then, and nothing else.
      if (status != KVSTRATA_E_BUFFER_TOO_SMALL) {
        count.Check("kvstrata_writer_snapshot_positions", status == KVSTRATA_OK);
      }
      Judge("kvstrata_writer_snapshot_positions", status, error, {&positions});
    }
  }
}

void Session::WriterCommit() {
  LetGo();
  OutputStruct<kvstrata_commit_info> info(in_);
  ErrorOutput error(in_);
  Judge("kvstrata_writer_commit",
        kvstrata_writer_commit(writers_.Pick(in_), in_.OneIn(4) ? in_.Number32(3) : 0, in_.Number(50), info.get(),
                               error.get()),
        error, {&info});
}

}  // namespace kvstrata::fuzz
