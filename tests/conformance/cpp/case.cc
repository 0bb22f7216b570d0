// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cpp/case.h"

#include "tests/conformance/members.h"

namespace kvstrata::conformance {

std::string Answers::Of(const std::string& key) const {
  const auto found = words_.find(key);
  return found != words_.end() ? found->second : Member(key);
}

std::string Answers::Member(const std::string& key) const {
  const std::size_t colon = key.find(':');
  const std::size_t index = colon != std::string::npos ? std::stoul(key.substr(colon + 1)) : 0;
  for (const answer_member& member : kAnswerMembers) {
    if (owner_ != member.owner || key.substr(0, colon) != member.name) continue;
    const unsigned char* at = bytes_.data() + member.offset;
    if (member.kind == 'b') return Hex(at, member.size);
    const std::size_t size = member.size / member.count;
    std::uint64_t wide = 0;
    std::memcpy(&wide, at + index * size, size);  // little-endian, as the library
    if (member.kind != 'i') return std::to_string(wide);
    return std::to_string(size == sizeof wide ? static_cast<std::int64_t>(wide)
                                              : static_cast<std::int64_t>(static_cast<std::int32_t>(wide)));
  }
  return "?";
}

Case::~Case() {
  for (auto& [name, store] : stores_) store->LetGo();
}

std::string Case::Run(const Step& step) {
  const Answer run = StepOf(step.operation);
  const result<Answers> done =
      run != nullptr ? (this->*run)(step) : result<Answers>(error(errc::unsupported, "step", step.operation));
  std::string out = std::string("status=") + (status_name(done.code()) + std::strlen("KVSTRATA_"));
  for (const std::string& key : step.asked) {
    out += " " + key + "=";
    if (done) {
      out += done->Of(key);
    } else {
      out += key == "field" ? std::string(done.error().field()) : "-";
    }
  }
  return out;
}

Case::Answer Case::StepOf(const std::string& operation) {
  static const std::map<std::string, Answer> kSteps = {
      {"layout", &Case::MakeLayout},   {"storage", &Case::MakeStore}, {"hold", &Case::ChangeStore},
      {"let_go", &Case::ChangeStore},  {"fail", &Case::ChangeStore},  {"damage", &Case::ChangeStore},
      {"wipe", &Case::ChangeStore},    {"swap", &Case::ChangeStore},  {"look", &Case::Look},
      {"cache", &Case::OpenCache},     {"info", &Case::Info},         {"namespace", &Case::OpenNamespace},
      {"drop", &Case::Drop},           {"release", &Case::Release},   {"stats", &Case::Stats},
      {"close", &Case::Close},         {"events", &Case::Events},     {"trim", &Case::Trim},
      {"purge", &Case::Purge},         {"sync", &Case::Sync},         {"verify", &Case::Verify},
      {"status", &Case::Status},       {"version", &Case::Version},   {"store", &Case::StoreTokens},
      {"positions", &Case::Positions}, {"lookup", &Case::Lookup},     {"limit", &Case::Limit},
      {"renew", &Case::Renew},         {"agree", &Case::Agree},       {"difference", &Case::Difference},
      {"plan", &Case::Plan},           {"start", &Case::Start},       {"wait", &Case::Wait},
      {"poll", &Case::Poll},           {"cancel", &Case::Cancel},     {"pin", &Case::Pin},
      {"pinned", &Case::Pinned}};
  const auto found = kSteps.find(operation);
  return found != kSteps.end() ? found->second : nullptr;
}

}  // namespace kvstrata::conformance
