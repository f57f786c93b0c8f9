// What a check has to say: fine, worth knowing, or in the way; and then what to do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace cadre {

enum class FindingStatus : uint8_t { kOk, kNote, kProblem };
std::string_view finding_status_name(FindingStatus status);  // ok, note, problem

struct Finding {
  std::string section, name;
  FindingStatus status = FindingStatus::kOk;
  std::string text;     // what was found
  std::string advice;   // what to do; never empty with a problem
  json::object values;  // the same for programs, units in the names
};

FindingStatus worst(std::span<const Finding> findings);
// A line for each finding under its section's name, advice on a line of its own, and a last line that counts.
std::string findings_text(std::span<const Finding> findings);
// {"status", "problems", "notes", "findings": [{"section", "name", "status", "text", "advice", "values"}]}
json::object findings_json(std::span<const Finding> findings);

std::string gib_text(int64_t bytes);       // "23.5 GiB"
std::string grouped_text(int64_t number);  // "1,234,567"

}  // namespace cadre
