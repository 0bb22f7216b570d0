// SPDX-License-Identifier: Apache-2.0
// The handles of one conformance case by name, and one function for each kind of step.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvstrata/kvstrata.hpp"
#include "tests/conformance/cpp/language.h"
#include "tests/conformance/cpp/store.h"

namespace kvstrata::conformance {

// What a step answers: the bytes of a struct of the API, by the name of its type, and words beside.
class Answers {
 public:
  Answers() = default;
  template <class Struct>
  Answers(const char* owner, const Struct& filled) : owner_(owner), bytes_(sizeof filled) {
    std::memcpy(bytes_.data(), &filled, sizeof filled);
  }
  Answers& Add(const std::string& key, const std::string& text) {
    words_[key] = text;
    return *this;
  }
  Answers& Add(const std::string& key, std::uint64_t number) { return Add(key, std::to_string(number)); }
  std::string Of(const std::string& key) const;

 private:
  std::string Member(const std::string& key) const;

  std::string owner_;
  std::vector<unsigned char> bytes_;
  std::map<std::string, std::string> words_;
};

class Case {
 public:
  explicit Case(std::string folder) : folder_(std::move(folder)) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  ~Case();

  // "status=OK usable_tokens=48"
  std::string Run(const Step& step);

 private:
  using Layout = std::shared_ptr<layout>;
  struct Space {
    name_space handle;
    Layout what;
  };
  struct Found {
    match handle;
    Layout what;
  };
  struct Restore {
    restore_plan plan;
    Layout what;
    std::vector<plan_segment> segments;
    std::vector<std::vector<unsigned char>> memory;  // one for each segment, guards included
    std::uint64_t mark = 0;
  };
  using Answer = result<Answers> (Case::*)(const Step&);

  static Answer StepOf(const std::string& operation);

  result<Answers> MakeLayout(const Step& step);
  result<Answers> MakeStore(const Step& step);
  result<Answers> ChangeStore(const Step& step);
  result<Answers> Look(const Step& step);
  result<Answers> OpenCache(const Step& step);
  result<Answers> OpenNamespace(const Step& step);
  result<Answers> Info(const Step& step);
  result<Answers> Drop(const Step& step);
  result<Answers> Release(const Step& step);
  result<Answers> Stats(const Step& step);
  result<Answers> Close(const Step& step);
  result<Answers> Events(const Step& step);
  result<Answers> Trim(const Step& step);
  result<Answers> Purge(const Step& step);
  result<Answers> Sync(const Step& step);
  result<Answers> Verify(const Step& step);
  result<Answers> Status(const Step& step);
  result<Answers> Version(const Step& step);

  // steps_restore.cc
  result<Answers> StoreTokens(const Step& step);
  result<Answers> Positions(const Step& step);
  result<Answers> Lookup(const Step& step);
  result<Answers> Limit(const Step& step);
  result<Answers> Renew(const Step& step);
  result<Answers> Agree(const Step& step);
  result<Answers> Difference(const Step& step);
  result<Answers> Plan(const Step& step);
  result<Answers> Start(const Step& step);
  result<Answers> Wait(const Step& step);
  result<Answers> Poll(const Step& step);
  result<Answers> Cancel(const Step& step);
  result<Answers> Pin(const Step& step);
  result<Answers> Pinned(const Step& step);
  static std::uint64_t WrongBytes(const Restore& restore, std::uint64_t snapshot_position);

  std::string folder_;
  // Parents before what is made from them, so that children go first; any order is allowed.
  std::map<std::string, std::shared_ptr<Store>> stores_;
  std::map<std::string, Layout> layouts_;
  std::map<std::string, cache> caches_;
  std::map<std::string, Space> spaces_;
  std::map<std::string, Found> matches_;
  std::map<std::string, Restore> plans_;
  std::map<std::string, pinned_rows> pins_;
};

}  // namespace kvstrata::conformance
