#include "eplb/load_series.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/json.h"

namespace cadre::eplb {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
constexpr int64_t kMaxExperts = 1 << 16;

// The file so far. Layers of different records may come one by one.
struct Reader {
  std::string what;
  LoadSeries out;
  bool has_layer_ids = false;

  void check_experts(size_t found, const std::string& where) {
    if (found == 0 || found > kMaxExperts)
      throw invalid_input("{}: {}: expected 1 to {} experts, found {}; is this a load?", what, where, kMaxExperts,
                          found);
    if (out.num_experts == 0) out.num_experts = static_cast<int64_t>(found);
    if (static_cast<size_t>(out.num_experts) != found)
      throw invalid_input(
          "{}: {}: expected {} experts as before, found {}; give every layer and step the same number, or choose one "
          "model with --only",
          what, where, out.num_experts, found);
  }
};

double row_count(const json::value& value, const std::string& what, const std::string& where) {
  if (!value.is_number())
    throw invalid_input("{}: {}: expected a number of rows, found {}; correct it", what, where, describe(value));
  const double rows = value.to_number<double>();
  // Above 2^53 rows no longer count one by one, and sums of such numbers end somewhere.
  if (!(rows >= 0) || rows > 0x1p53)
    throw invalid_input("{}: {}: expected a finite number of rows from 0 to 2^53, found {}; correct it", what, where,
                        describe(value));
  return rows + 0.0;  // of -0.0 as well
}

const json::array& array_of(const json::value& value, const std::string& what, const std::string& where,
                            std::string_view expected) {
  if (!value.is_array())
    throw invalid_input("{}: {}: expected {}, found {}; correct the shape", what, where, expected, describe(value));
  if (value.get_array().empty())
    throw invalid_input("{}: {}: expected {}, found none; record some", what, where, expected);
  return value.get_array();
}

void append_experts(Reader* reader, const json::value& value, const std::string& where, std::vector<double>* rows) {
  const json::array& experts = array_of(value, reader->what, where, "a list with a number for each expert");
  reader->check_experts(experts.size(), where);
  for (size_t e = 0; e < experts.size(); ++e)
    rows->push_back(row_count(experts[e], reader->what, fmt::format("{}, expert {}", where, e)));
}

// [layers][experts]
void add_step(Reader* reader, const json::value& value, std::string name, int64_t num_steps = 1) {
  const std::string where = name.empty() ? "the load" : name;
  const json::array& layers = array_of(value, reader->what, where, "a list of layers");
  LoadStep step{.name = std::move(name), .num_steps = num_steps};
  for (size_t l = 0; l < layers.size(); ++l)
    append_experts(reader, layers[l], fmt::format("{}, layer {}", where, l), &step.rows);
  if (reader->out.layers.empty())
    for (size_t l = 0; l < layers.size(); ++l) reader->out.layers.push_back(static_cast<int64_t>(l));
  if (layers.size() != reader->out.layers.size())
    throw invalid_input("{}: {}: expected {} layers, found {}; give every step the same layers", reader->what, where,
                        reader->out.layers.size(), layers.size());
  reader->out.steps.push_back(std::move(step));
}

bool is_list_of_steps(const json::value& value) {
  if (!value.is_array() || value.get_array().empty()) return false;
  const json::value& first = value.get_array()[0];
  return first.is_array() && !first.get_array().empty() && first.get_array()[0].is_array();
}

// [layers][experts] or [steps][layers][experts]
void add_steps(Reader* reader, const json::value& value) {
  if (!is_list_of_steps(value)) return add_step(reader, value, "");
  const json::array& steps = value.get_array();
  for (size_t s = 0; s < steps.size(); ++s) add_step(reader, steps[s], fmt::format("step {}", s));
}

void add_document(Reader* reader, const json::value& document) {
  if (document.is_array()) return add_steps(reader, document);
  if (document.is_object()) {
    const json::object& object = document.get_object();
    for (const char* key : {"logical_count", "weight", "counts"})
      if (const json::value* value = object.if_contains(key)) return add_steps(reader, *value);
    if (const json::value* loads = object.if_contains("loads")) {
      if (!loads->is_object() || loads->get_object().empty())
        throw invalid_input("{}: expected 'loads' to name a load or more, found {}; correct it", reader->what,
                            describe(*loads));
      for (const auto& [name, value] : loads->get_object()) add_step(reader, value, std::string(name));
      return;
    }
  }
  throw invalid_input(
      "{}: expected a load, {{\"logical_count\": [layers][experts]}} or another form of docs/eplb.md, found {}; record "
      "one or convert it",
      reader->what, describe(document));
}

std::string text_of(const json::value& value) {
  return value.is_string() ? std::string(value.get_string()) : json::serialize(value);
}

bool is_wanted(const json::object& record, const LoadFilter& filter) {
  return std::all_of(filter.only.begin(), filter.only.end(), [&](const auto& pair) {
    const json::value* value = record.if_contains(pair.first);
    return value && text_of(*value) == pair.second;
  });
}

// What tells a record of JSON lines from others: its strings, in the order of the file.
std::string name_of(const json::object& record) {
  std::string name;
  for (const auto& [key, value] : record)
    if (value.is_string()) name += (name.empty() ? "" : "/") + std::string(value.get_string());
  return name;
}

// First line of our own form: {"format": "cadre.expert_load", "version": 1, "num_experts": E, "layers": [ids]}
void read_header(Reader* reader, const json::object& header) {
  const JsonObject object(header, reader->what);
  object.integer("version", 1, 1);
  reader->out.num_experts = object.integer("num_experts", 1, kMaxExperts);
  const json::array* layers = object.maybe_array("layers");
  if (!layers || layers->empty())
    throw invalid_input("{}: expected 'layers', the ids of the layers that are recorded, found none; give them",
                        reader->what);
  for (const json::value& id : *layers) {
    if (!id.is_int64() || id.get_int64() < 0 ||
        (!reader->out.layers.empty() && id.get_int64() <= reader->out.layers.back()))
      throw invalid_input("{}: expected 'layers' to rise from 0 or more, found {}; correct them", reader->what,
                          describe(id));
    reader->out.layers.push_back(id.get_int64());
  }
}

// "routes": [tokens][layers][top_k], expert ids of some of a step's tokens.
void add_routes(Reader* reader, const json::value& value, const std::string& name) {
  LoadStep step{.name = name,
                .rows = std::vector<double>(static_cast<size_t>(reader->out.num_layers() * reader->out.num_experts))};
  for (const json::value& token : array_of(value, reader->what, name, "a list of tokens")) {
    const json::array& layers = array_of(token, reader->what, name, "a list of layers for each token");
    if (layers.size() != reader->out.layers.size())
      throw invalid_input("{}: {}: expected routes of {} layers, found {}; correct the shape", reader->what, name,
                          reader->out.layers.size(), layers.size());
    for (size_t l = 0; l < layers.size(); ++l)
      for (const json::value& id : array_of(layers[l], reader->what, name, "a list of experts for each layer")) {
        if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= reader->out.num_experts)
          throw invalid_input("{}: {}: expected experts 0 to {}, found {}; correct it", reader->what, name,
                              reader->out.num_experts - 1, describe(id));
        ++step.rows[l * static_cast<size_t>(reader->out.num_experts) + static_cast<size_t>(id.get_int64())];
      }
  }
  reader->out.steps.push_back(std::move(step));
}

// Of our own form: {"step": N, "counts": [layers][experts]}, with "steps" the passes it sums and "rank" where each rank
// wrote its own: those of a step are added up.
void add_own_record(Reader* reader, const json::object& record) {
  const JsonObject object(record, reader->what);
  const std::string name = fmt::format("step {}", object.integer("step", 0, INT64_MAX));
  const json::value* counts = object.find("counts");
  if (const json::value* routes = object.find("routes"))
    add_routes(reader, *routes, name);
  else if (counts)
    add_step(reader, *counts, name, object.maybe_integer("steps", 1, INT64_MAX).value_or(1));
  else
    throw invalid_input("{}: {}: expected 'counts' or 'routes', found neither; record them", reader->what, name);
  auto& steps = reader->out.steps;
  if (!object.has("rank") || steps.size() < 2 || steps[steps.size() - 2].name != name) return;
  for (size_t i = 0; i < steps.back().rows.size(); ++i) steps[steps.size() - 2].rows[i] += steps.back().rows[i];
  steps.pop_back();
}

// {"counts": [layers][experts]} is a step; of {"layer": N, "counts": [experts]} those with the same other fields are.
void add_records(Reader* reader, const std::vector<json::value>& records, const LoadFilter& filter) {
  std::vector<std::string> names;
  std::map<std::string, std::map<int64_t, std::vector<double>>> layers_of;
  for (const json::value& value : records) {
    if (!value.is_object())
      throw invalid_input("{}: expected an object on every line, found {}; correct it", reader->what, describe(value));
    const json::object& record = value.get_object();
    if (!is_wanted(record, filter)) continue;
    const JsonObject object(record, reader->what);
    const std::string name = name_of(record);
    const json::value* counts = object.find("counts");
    if (!counts)
      throw invalid_input("{}: expected 'counts' on every line, found one without{}; correct it", reader->what,
                          name.empty() ? "" : " (" + cadre::quoted(name) + ")");
    if (!object.has("layer")) {
      add_step(reader, *counts, name);
      continue;
    }
    const int64_t layer = object.integer("layer", 0, 1 << 20);
    if (!layers_of.contains(name)) names.push_back(name);
    auto [at, is_new] = layers_of[name].emplace(layer, std::vector<double>{});
    if (!is_new)
      throw invalid_input("{}: {}: expected layer {} once, found it twice; choose one series with --only KEY=VALUE",
                          reader->what, name, layer);
    append_experts(reader, *counts, fmt::format("{}, layer {}", name, layer), &at->second);
  }
  for (const std::string& name : names) {
    LoadStep step{.name = name};
    std::vector<int64_t> ids;
    for (auto& [layer, rows] : layers_of[name]) {
      ids.push_back(layer);
      step.rows.insert(step.rows.end(), rows.begin(), rows.end());
    }
    if (reader->out.layers.empty()) reader->out.layers = ids;
    if (reader->out.layers != ids)
      throw invalid_input("{}: {}: expected the {} layers of the others, found {} layers; choose one model with --only",
                          reader->what, name, reader->out.layers.size(), ids.size());
    reader->out.steps.push_back(std::move(step));
  }
}

std::vector<json::value> parse_lines(std::string_view text, const std::string& what) {
  std::vector<json::value> out;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      out.push_back(parse_json(line, fmt::format("{}, line {}", what, number)));
  }
  return out;
}

// JSON has no such numbers, but Python writes them.
void refuse_nan(std::string_view text, std::string_view what) {
  for (const std::string_view word : {"NaN", "Infinity"}) {
    const size_t at = text.find(word);
    if (at != std::string_view::npos &&
        (at == 0 || std::string_view(" ,[:-\n\t").find(text[at - 1]) != std::string_view::npos))
      throw invalid_input("{}: expected finite numbers of rows, found {} at byte {}; correct it", what, word, at);
  }
}

// Drops what no step loads.
LoadSeries finished(Reader&& reader) {
  LoadSeries& series = reader.out;
  if (series.steps.empty())
    throw invalid_input("{}: expected a load, found none; record one, or let --only choose one that is there",
                        reader.what);
  std::vector<int64_t> kept;
  for (int64_t l = 0; l < series.num_layers(); ++l)
    for (int64_t s = 0; s < static_cast<int64_t>(series.steps.size()); ++s) {
      const auto rows = series.of(s, l);
      if (std::all_of(rows.begin(), rows.end(), [](double r) { return r == 0; })) continue;
      kept.push_back(l);
      break;
    }
  if (kept.empty())
    throw invalid_input("{}: expected a load, found only zeros; record while requests run", reader.what);
  LoadSeries out{.num_experts = series.num_experts};
  for (const int64_t l : kept) out.layers.push_back(series.layers[static_cast<size_t>(l)]);
  for (size_t s = 0; s < series.steps.size(); ++s) {
    LoadStep step{.name = series.steps[s].name, .num_steps = series.steps[s].num_steps};
    for (const int64_t l : kept)
      step.rows.insert(step.rows.end(), series.of(static_cast<int64_t>(s), l).begin(),
                       series.of(static_cast<int64_t>(s), l).end());
    out.steps.push_back(std::move(step));
  }
  return out;
}

LoadSeries read_routes(std::string_view bytes, const std::string& what, const LoadFilter::Routes& shape) {
  Reader reader{.what = what};
  reader.out.num_experts = shape.num_experts;
  for (int64_t l = 0; l < shape.layers; ++l) reader.out.layers.push_back(l);
  const size_t per_token = static_cast<size_t>(shape.layers * shape.top_k);
  if (bytes.empty() || bytes.size() % per_token != 0)
    throw invalid_input("{}: expected a multiple of {} bytes ({} layers of {} experts), found {}; correct --routes",
                        what, per_token, shape.layers, shape.top_k, bytes.size());
  for (size_t at = 0; at < bytes.size(); ++at) {
    const size_t token = at / per_token;
    if (at % (per_token * static_cast<size_t>(shape.tokens_per_step)) == 0)
      reader.out.steps.push_back({.name = fmt::format("step {}", token / static_cast<size_t>(shape.tokens_per_step)),
                                  .rows = std::vector<double>(static_cast<size_t>(shape.layers * shape.num_experts))});
    const size_t expert = static_cast<uint8_t>(bytes[at]);
    if (expert >= static_cast<size_t>(shape.num_experts))
      throw invalid_input("{}: expected experts 0 to {}, found {} at byte {}; correct --routes", what,
                          shape.num_experts - 1, expert, at);
    const size_t layer = at % per_token / static_cast<size_t>(shape.top_k);
    ++reader.out.steps.back().rows[layer * static_cast<size_t>(shape.num_experts) + expert];
  }
  return finished(std::move(reader));
}

std::string read_file(const std::filesystem::path& path) {
  std::error_code ec;
  const uint64_t bytes = std::filesystem::file_size(path, ec);
  if (ec)
    throw Error(ErrorKind::kNotFound,
                fmt::format("expected a readable file at {}, found: {}; check the path", path.string(), ec.message()));
  if (bytes > kMaxBytes)
    throw invalid_input("{}: expected at most {} bytes, found {}; this is not the file it should be", path.string(),
                        kMaxBytes, bytes);
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in)
    throw Error(ErrorKind::kNotFound,
                fmt::format("expected to read {} bytes of {}, found fewer; check the file", bytes, path.string()));
  return text;
}

LoadSeries parse(std::string_view text, std::string_view what, const LoadFilter& filter) {
  Reader reader{.what = std::string(what)};
  // One document, over as many lines as it likes, or a document on each line: told apart by whether the first line is
  // whole and another follows.
  const size_t first_end = text.find('\n');
  bool is_lines = false;
  if (first_end != std::string_view::npos && text.find_first_not_of(" \t\r\n", first_end) != std::string_view::npos &&
      text[0] == '{') {
    const std::string_view first = text.substr(0, text.find_last_not_of(" \t\r\n", first_end) + 1);
    is_lines = first.size() > 1 && first.back() == '}';
  }
  std::vector<json::value> records = is_lines ? parse_lines(text, reader.what) : std::vector<json::value>{};
  if (!is_lines) records.push_back(parse_json(text, what));
  const json::object* head = records[0].if_object();
  if (head && head->contains("format")) {
    if (text_of(head->at("format")) != "cadre.expert_load")
      throw invalid_input("{}: expected the format cadre.expert_load, found {}; give a load", what,
                          describe(head->at("format")));
    read_header(&reader, *head);
    for (size_t i = 1; i < records.size(); ++i) {
      if (!records[i].is_object())
        throw invalid_input("{}: expected an object on every line, found {}; correct it", what, describe(records[i]));
      add_own_record(&reader, records[i].get_object());
    }
  } else if (is_lines || (head && head->contains("layer"))) {
    add_records(&reader, records, filter);
  } else {
    add_document(&reader, records[0]);
  }
  return finished(std::move(reader));
}

}  // namespace

LoadSeries parse_load(std::string_view text, std::string_view what, const LoadFilter& filter) {
  try {
    return parse(text, what, filter);
  } catch (const Error&) {
    refuse_nan(text, what);
    throw;
  }
}

LoadSeries read_load(const std::filesystem::path& file, const LoadFilter& filter) {
  const std::string text = read_file(file), what = file.filename().string();
  if (filter.routes) return read_routes(text, what, *filter.routes);
  return parse_load(text, what, filter);
}

std::vector<double> LoadSeries::sum(int64_t first, int64_t count) const {
  std::vector<double> out(static_cast<size_t>(num_layers() * num_experts));
  for (int64_t s = first; s < first + count; ++s)
    for (size_t i = 0; i < out.size(); ++i) out[i] += steps[static_cast<size_t>(s)].rows[i];
  return out;
}

int64_t LoadSeries::num_passes(int64_t first, int64_t count) const {
  int64_t out = 0;
  for (int64_t s = first; s < first + count; ++s) out += steps[static_cast<size_t>(s)].num_steps;
  return out;
}

std::vector<std::string> remarks(const LoadSeries& series) {
  std::vector<std::string> out;
  const std::vector<double> rows = series.sum(0, static_cast<int64_t>(series.steps.size()));
  if (series.num_experts == 1) return out;
  for (int64_t l = 0; l < series.num_layers(); ++l) {
    const auto of_layer =
        std::span(rows).subspan(static_cast<size_t>(l * series.num_experts), static_cast<size_t>(series.num_experts));
    const auto used = std::count_if(of_layer.begin(), of_layer.end(), [](double r) { return r > 0; });
    if (used != 1) continue;
    const auto e = std::find_if(of_layer.begin(), of_layer.end(), [](double r) { return r > 0; }) - of_layer.begin();
    out.push_back(fmt::format("layer {}: expert {} has every row; only replicas of it can spread them",
                              series.layers[static_cast<size_t>(l)], e));
  }
  return out;
}

std::string to_json_lines(const LoadSeries& series) {
  json::array layers(series.layers.begin(), series.layers.end());
  std::string out = json::serialize(json::object{{"format", "cadre.expert_load"},
                                                 {"version", 1},
                                                 {"num_experts", series.num_experts},
                                                 {"layers", std::move(layers)}}) +
                    "\n";
  for (size_t s = 0; s < series.steps.size(); ++s) {
    json::array counts;
    for (int64_t l = 0; l < series.num_layers(); ++l) {
      json::array of_layer;
      for (const double r : series.of(static_cast<int64_t>(s), l)) {
        if (r == std::floor(r) && r < 0x1p53)
          of_layer.emplace_back(static_cast<int64_t>(r));
        else
          of_layer.emplace_back(r);
      }
      counts.emplace_back(std::move(of_layer));
    }
    out += json::serialize(
               json::object{{"step", s}, {"steps", series.steps[s].num_steps}, {"counts", std::move(counts)}}) +
           "\n";
  }
  return out;
}

}  // namespace cadre::eplb
