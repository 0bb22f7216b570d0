// SPDX-License-Identifier: Apache-2.0
// Identities and namespaces for tests of the C API.
//
// Thread rule: one thread at a time for each object.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvstrata/c_api.h"
#include "tests/support/fake_handles.h"

namespace kvstrata::test {

// All names that any of the presets asks for, each with a value of its own.
class TestIdentity {
 public:
  TestIdentity() {
    for (const char* name : {"model.weights", "model.quantization", "rope", "packing", "adapter",
                             "engine.state_version", "kernel.numerics", "tenant"}) {
      values_.emplace_back(name, std::string("test ") + name);
    }
  }
  void Set(const std::string& name, const std::string& value) {
    for (auto& [known, bytes] : values_) {
      if (known == name) bytes = value;
    }
  }
  void Remove(const std::string& name) {
    std::erase_if(values_, [&](const auto& field) { return field.first == name; });
  }
  void Add(const std::string& name, const std::string& value) { values_.emplace_back(name, value); }

  // Valid until the identity changes or is asked again.
  const std::vector<kvstrata_identity_field>& Fields() {
    fields_.clear();
    for (const auto& [name, bytes] : values_) {
      auto field = Sized<kvstrata_identity_field>();
      field.name = name.c_str();
      field.bytes = bytes.data();
      field.size = bytes.size();
      fields_.push_back(field);
    }
    return fields_;
  }
  kvstrata_namespace_options Options(const kvstrata_layout* layout) {
    auto options = Sized<kvstrata_namespace_options>();
    options.layout = layout;
    options.fields = Fields().data();
    options.field_count = fields_.size();
    return options;
  }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<kvstrata_identity_field> fields_;
};

}  // namespace kvstrata::test
