#include "verify/verify_text.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "base/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFailures = 20;
constexpr size_t kShownBytes = 400;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void for_each_line(const fs::path& path, const std::function<void(int64_t number, const JsonObject& line)>& take) {
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::kNotFound, fmt::format("--vectors: expected a readable file of JSON lines, found none at {}; check the path", path.string()));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const json::value value = parse_json(line, where);
    if (!value.is_object()) throw invalid_input("{}: expected a JSON object, found {}; see the vectors' form in 'cadre verify --help'", where, describe(value));
    take(number, JsonObject(value.get_object(), where));
  }
  if (number == 0) throw invalid_input("--vectors: expected a JSON object a line, found an empty file {}; give another", path.string());
}

std::vector<TokenId> ids_of(const JsonObject& line, std::string_view key) {
  const json::array* ids = line.maybe_array(key);
  if (!ids) throw invalid_input("{}: expected \"{}\" to be an array of token ids, found none; give each line one", line.name(), key);
  std::vector<TokenId> out;
  for (const json::value& id : *ids) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > INT32_MAX)
      throw invalid_input("{}: expected token ids in \"{}\", found {}; correct it", line.name(), key, describe(id));
    out.push_back(static_cast<TokenId>(id.get_int64()));
  }
  return out;
}

std::string shown(const std::vector<TokenId>& ids) { return cadre::quoted(fmt::format("{}", fmt::join(ids, " ")), kShownBytes); }
std::string shown(const std::string& text) { return cadre::quoted(text, kShownBytes); }

class Tally {
 public:
  explicit Tally(VectorReport* report) : report_(report) {}
  template <typename T>
  bool compare(int64_t line, const std::string& what, const T& expected, const T& found) {
    if (expected == found) return true;
    note(line, what, shown(expected), shown(found));
    return false;
  }
  void note(int64_t line, const std::string& what, std::string expected, std::string found) {
    if (report_->failures.size() < kMaxFailures) report_->failures.push_back({line, what, std::move(expected), std::move(found)});
  }
  void count(bool is_equal) { ++(is_equal ? report_->num_equal : report_->num_different); }

 private:
  VectorReport* report_;
};

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  IncrementalDetokenizer detokenizer(tokenizer, false);
  std::string text;
  for (const TokenId id : ids) detokenizer.push(id, &text);
  detokenizer.finish(&text);
  return text;
}

// Where a vector's template may lie; the folder given may be the one of the templates themselves.
std::string find_template(const fs::path& dir, const std::string& name) {
  constexpr std::string_view kConfig = "tokenizer_config:";
  const fs::path beside = dir.parent_path();
  if (name.starts_with(kConfig)) {
    const std::string model = name.substr(kConfig.size());
    for (const fs::path& path : {dir / model / "tokenizer_config.json", beside / model / "tokenizer_config.json", dir / "tokenizer_config.json"}) {
      if (!fs::exists(path)) continue;
      const json::value config = parse_json_file(path);
      const json::value* text = config.is_object() ? config.get_object().if_contains("chat_template") : nullptr;
      if (text && text->is_string()) return std::string(std::string_view(text->get_string()));
    }
    return "";
  }
  for (const fs::path& path : {dir / name, beside / name, dir / fs::path(name).filename()})
    if (fs::is_regular_file(path)) return read_file(path);
  return "";
}

}  // namespace

VectorReport verify_tokenizer(const fs::path& dir, const fs::path& vectors) {
  const auto tokenizer = load_tokenizer(dir);
  VectorReport report;
  Tally tally(&report);
  for_each_line(vectors, [&](int64_t number, const JsonObject& line) {
    const std::string text = line.string("text");
    const std::vector<TokenId> ids = ids_of(line, "ids");
    const std::string decoded = line.maybe_string("decoded").value_or(text);
    bool is_equal = tally.compare(number, "encode", ids, tokenizer->encode(text, false));
    is_equal &= tally.compare(number, "decode", decoded, tokenizer->decode(ids, false));
    is_equal &= tally.compare(number, "stream", decoded, streamed(*tokenizer, ids));
    // A text that begins with the begin token gets no second one here; the vectors' makers differ about that.
    if (line.has("ids_special") && (ids.empty() || ids[0] != tokenizer->bos_id()))
      is_equal &= tally.compare(number, "encode with special tokens", ids_of(line, "ids_special"), tokenizer->encode(text, true));
    tally.count(is_equal);
  });
  return report;
}

VectorReport verify_templates(const fs::path& dir, const fs::path& vectors, int64_t now_unix_s) {
  VectorReport report;
  Tally tally(&report);
  std::map<std::string, std::string> sources;
  // A trailing slash would make the folder its own parent.
  const fs::path folder = fs::absolute(dir / "").parent_path();
  if (!fs::is_directory(folder)) throw Error(ErrorKind::kNotFound, fmt::format("--templates: expected a folder, found none at {}; check the path", dir.string()));
  for_each_line(vectors, [&](int64_t number, const JsonObject& line) {
    const std::string name = line.string("template"), label = fmt::format("{}, {}", name, line.maybe_string("case").value_or(fmt::format("line {}", number)));
    if (!sources.count(name)) {
      sources[name] = find_template(folder, name);
      if (sources[name].empty()) report.missing.push_back(name);
    }
    if (sources[name].empty()) {
      ++report.num_skipped;
      return;
    }
    const auto rendered = line.maybe_string("rendered");
    if (!rendered && !line.has("error"))
      throw invalid_input("{}: expected \"rendered\" or \"error\", found neither; give each line one", line.name());
    json::object variables = line.raw();
    for (const char* key : {"template", "case", "rendered", "error"}) variables.erase(key);
    try {
      const std::string found = ChatTemplate(sources[name]).render(variables, now_unix_s);
      if (rendered) return tally.count(tally.compare(number, label, *rendered, found));
      tally.note(number, label, "a refusal", shown(found));
    } catch (const Error& error) {
      if (!rendered) return tally.count(true);
      tally.note(number, label, shown(*rendered), fmt::format("a refusal: {}", error.what()));
    }
    tally.count(false);
  });
  return report;
}

std::string report_text(const VectorReport& report) {
  std::string out;
  for (const VectorFailure& f : report.failures) out += fmt::format("line {}: {}\n  expected {}\n  found    {}\n", f.line, f.what, f.expected, f.found);
  for (const std::string& name : report.missing) out += fmt::format("not there, skipped: {}\n", name);
  out += fmt::format("{}: {} equal, {} different, {} skipped\n", report.passed() ? "passed" : "FAILED", report.num_equal, report.num_different, report.num_skipped);
  return out;
}

json::object report_json(const VectorReport& report) {
  json::array failures;
  for (const VectorFailure& f : report.failures) failures.push_back({{"line", f.line}, {"what", f.what}, {"expected", f.expected}, {"found", f.found}});
  return {{"equal", report.num_equal}, {"different", report.num_different}, {"skipped", report.num_skipped}, {"missing", json::array(report.missing.begin(), report.missing.end())},
          {"failures", std::move(failures)}, {"passed", report.passed()}};
}

}  // namespace cadre
