#include "host/finding.h"

#include <fmt/format.h>

#include <algorithm>

namespace cadre {
namespace {

int64_t count(std::span<const Finding> findings, FindingStatus status) {
  return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.status == status; });
}

}  // namespace

std::string_view finding_status_name(FindingStatus status) {
  switch (status) {
    case FindingStatus::kOk:
      return "ok";
    case FindingStatus::kNote:
      return "note";
    case FindingStatus::kProblem:
      return "problem";
  }
  return "?";
}

FindingStatus worst(std::span<const Finding> findings) {
  FindingStatus out = FindingStatus::kOk;
  for (const Finding& finding : findings) out = std::max(out, finding.status);
  return out;
}

std::string findings_text(std::span<const Finding> findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.name.size());
  std::string out, section;
  for (const Finding& finding : findings) {
    if (finding.section != section) out += fmt::format("{}{}\n", out.empty() ? "" : "\n", finding.section);
    section = finding.section;
    out += fmt::format("  {:<8} {:<{}}  {}\n", finding_status_name(finding.status), finding.name, width, finding.text);
    if (!finding.advice.empty()) out += fmt::format("  {:<8} {:<{}}  -> {}\n", "", "", width, finding.advice);
  }
  const int64_t problems = count(findings, FindingStatus::kProblem), notes = count(findings, FindingStatus::kNote);
  return out + fmt::format("\n{} {}, {} {}\n", problems, problems == 1 ? "problem" : "problems", notes,
                           notes == 1 ? "note" : "notes");
}

json::object findings_json(std::span<const Finding> findings) {
  json::array list;
  for (const Finding& f : findings)
    list.push_back(json::object{{"section", f.section},
                                {"name", f.name},
                                {"status", finding_status_name(f.status)},
                                {"text", f.text},
                                {"advice", f.advice},
                                {"values", f.values}});
  return {{"status", finding_status_name(worst(findings))},
          {"problems", count(findings, FindingStatus::kProblem)},
          {"notes", count(findings, FindingStatus::kNote)},
          {"findings", std::move(list)}};
}

std::string gib_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.1f} GiB", value / 0x1p30);
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  return fmt::format("{:.1f} KiB", value / 0x1p10);
}

std::string grouped_text(int64_t number) {
  const std::string digits = fmt::format("{}", number);
  const size_t sign = number < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace cadre
