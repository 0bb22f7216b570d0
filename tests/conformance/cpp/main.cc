// SPDX-License-Identifier: Apache-2.0
// Answers the conformance cases with the C++ API (tests/conformance/README.md).
//
// usage: conformance_cpp CASES FOLDER
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "tests/conformance/cpp/case.h"

int main(int count, char** words) {
  using kvstrata::conformance::Case;
  if (count != 3) return 2;
  std::ifstream file(words[1]);
  if (!file) return 2;
  std::unique_ptr<Case> now;
  std::string separator;
  for (std::string line; std::getline(file, line);) {
    const auto step = kvstrata::conformance::ParseStep(line);
    if (!step) continue;
    if (step->operation == "case") {
      if (now != nullptr) std::cout << "\n";
      now = std::make_unique<Case>(words[2]);
      std::cout << step->name << ": ";
      separator.clear();
    } else if (now != nullptr) {
      std::cout << separator << now->Run(*step);
      separator = " | ";
    }
  }
  std::cout << "\n";
  return 0;
}
