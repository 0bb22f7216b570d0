// SPDX-License-Identifier: Apache-2.0
// A recorded agent session: one JSON object per line with the strings "input" (the whole prompt) and "output".
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace agent_session {

struct TraceRequest {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

// Throws std::runtime_error naming the file and the line at fault. Requests with an empty prompt are left out.
std::vector<TraceRequest> ReadTrace(const std::string& path);

}  // namespace agent_session
