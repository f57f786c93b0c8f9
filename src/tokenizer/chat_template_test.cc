#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "tests/testing.h"

namespace cadre {
namespace {

constexpr int64_t kNow = 1767312000;  // 2026-01-02 00:00:00 UTC, the date of the golden renderings

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string text_of(const json::value& value) { return std::string(std::string_view(value.as_string())); }

std::string render(std::string_view source, std::string_view variables = "{}", ChatTemplateLimits limits = {}) {
  return ChatTemplate(source, limits).render(parse_json(variables, "variables").as_object(), kNow);
}

// The message of the refusal; "" with a test failure when it renders.
std::string refusal(std::string_view source, std::string_view variables = "{}", ChatTemplateLimits limits = {}) {
  try {
    const std::string text = render(source, variables, limits);
    ADD_FAILURE() << source << " rendered " << text.size() << " bytes: " << text.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidInput);
    return error.what();
  }
  return "";
}

std::string golden_source(const std::filesystem::path& tokenizers, const std::string& name) {
  constexpr std::string_view kPrefix = "tokenizer_config:";
  if (!name.starts_with(kPrefix)) return read_file(tokenizers / name);
  const auto config = tokenizers / name.substr(kPrefix.size()) / "tokenizer_config.json";
  return std::filesystem::exists(config) ? text_of(parse_json_file(config).at("chat_template")) : "";
}

TEST(ChatTemplateGolden, PublishedTemplatesRenderAsTheReference) {
  CADRE_DATA_OR_SKIP(data);
  const auto tokenizers = data / "tokenizers";
  std::ifstream in(tokenizers / "test_vectors" / "chat_template_golden.jsonl");
  int num_rendered = 0, num_refused = 0;
  for (std::string line; std::getline(in, line);) {
    const json::value golden = parse_json(line, "golden rendering");
    const std::string name = text_of(golden.at("template"));
    SCOPED_TRACE(name + ", " + text_of(golden.at("case")));
    const std::string source = golden_source(tokenizers, name);
    if (source.empty()) continue;  // a tokenizer whose licence keeps it out of the data
    json::object variables = golden.as_object();
    for (const char* key : {"template", "case", "rendered", "error"}) variables.erase(key);
    const ChatTemplate chat_template(source);
    if (golden.as_object().contains("error")) {
      EXPECT_THROW(chat_template.render(variables, kNow), Error);
      ++num_refused;
    } else {
      EXPECT_EQ(chat_template.render(variables, kNow), text_of(golden.at("rendered")));
      ++num_rendered;
    }
  }
  EXPECT_GE(num_rendered, 60);
  EXPECT_GE(num_refused, 2);
}

TEST(ChatTemplateGolden, AllPublishedTemplatesParse) {
  CADRE_DATA_OR_SKIP(data);
  int num_parsed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data / "tokenizers" / "chat_templates")) {
    if (entry.path().extension() != ".jinja") continue;
    EXPECT_NO_THROW(ChatTemplate(read_file(entry.path()))) << entry.path();
    ++num_parsed;
  }
  EXPECT_GE(num_parsed, 68);
}

// Lines of tests/chat_template as tools/make_chat_template_cases.py makes them.
void check_jinja_cases(const std::string& name, int min_cases) {
  const auto folder = testing::source_dir() / "tests" / "chat_template";
  std::ifstream in(folder / name);
  json::object shared;
  int num_cases = 0, num_failed = 0;
  for (std::string line; std::getline(in, line);) {
    const json::value value = parse_json(line, name);
    const json::object& golden = value.as_object();
    if (!golden.contains("rendered") && !golden.contains("error")) {
      shared = golden.at("variables").as_object();
      continue;
    }
    const std::string source = golden.contains("file") ? read_file(folder / text_of(golden.at("file"))) : text_of(golden.at("template"));
    std::string found, expected = golden.contains("error") ? "refused" : "rendered " + text_of(golden.at("rendered"));
    try {
      found = "rendered " + ChatTemplate(source).render(golden.contains("variables") ? golden.at("variables").as_object() : shared, kNow);
    } catch (const Error& error) {
      found = golden.contains("error") ? "refused" : error.what();
    }
    ++num_cases;
    if (found == expected) continue;
    if (++num_failed <= 20) ADD_FAILURE() << line.substr(0, 500) << "\nexpected: " << expected << "\nfound: " << found;
  }
  EXPECT_EQ(num_failed, 0);
  EXPECT_GE(num_cases, min_cases);
}

TEST(ChatTemplateGolden, ExpressionsEvaluateAsInJinja) { check_jinja_cases("expressions.jsonl", 2000); }
TEST(ChatTemplateGolden, StatementsRunAsInJinja) { check_jinja_cases("statements.jsonl", 500); }
TEST(ChatTemplateGolden, ConversationsRenderAsInJinja) { check_jinja_cases("conversations.jsonl", 64); }

struct Case {
  const char* source;
  const char* expected;
};

constexpr const char* kVariables = R"({"n": 7, "f": 2.5, "s": "Grüße, Welt", "t": true, "none": null, "empty": [],
  "l": [3, 1, 2], "d": {"b": 1, "a": [1.0, null, true, "<x>&'"]}, "users": [{"n": "x", "on": true}, {"n": "y"}]})";

void check(std::initializer_list<Case> cases) {
  for (const auto& [source, expected] : cases) {
    SCOPED_TRACE(source);
    try {
      EXPECT_EQ(render(source, kVariables), expected);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(ChatTemplate, NumbersFollowPython) {
  check({{"{{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}", "3.5 3 -4 1 2 1024 0.5"},
         {"{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ -0.0 }} {{ 1e-5 }}", "1.0 1e+16 1000000000000000.0 0.30000000000000004 -0.0 1e-05"},
         {"{{ true + true }} {{ 1 == true }} {{ 1 == 1.0 }} {{ '1' == 1 }}", "2 True True False"},
         {"{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ not 1 == 2 }}", "True False True"},
         {"{{ -2 ** 2 }} {{ -n | abs }} {{ 1_000 + 0x10 }}", "4 7 1016"},
         {"{{ '3' | int + 1 }} {{ '3.9' | int }} {{ 'x' | int(5) }} {{ '2.5' | float }} {{ 2.567 | round(2) }}", "4 3 5 2.5 2.57"}});
}

TEST(ChatTemplate, StringsCountCharacters) {
  check({{"{{ s | length }} {{ s[2] }} {{ s[-4:] }} {{ s[::-1] }} {{ s[1:4] }}", "11 ü Welt tleW ,eßürG rüß"},
         {"{{ s.split(', ') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1)[-1] }}", "['Grüße', 'Welt'] ['a', 'b'] b,c"},
         {"[{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}]", "[x|x |  x|a]"},
         {"{{ s.startswith('Gr') }} {{ s.endswith(('a', 'lt')) }} {{ s.find('W') }} {{ 'aXbX'.replace('X', '-', 1) }}", "True True 7 a-bX"},
         {"{{ s.upper() }} {{ 'ab cd' | title }} {{ 'ABC' | capitalize }} {{ 'a' ~ 1 ~ none ~ t }}", "GRÜSSE, WELT Ab Cd Abc a1NoneTrue"},
         {"{{ '%s-%03d' % ('a', 7) }} {{ '{}:{x}'.format(1, x=2) }} {{ '%.1f' | format(2.25) }}", "a-007 1:2 2.2"},
         {R"({{ 'a\nb\t\x41é' }} {{ "it's" | string | list | length }})", "a\nb\tAé 4"},
         {"{{ 'ab' * 3 }} {{ 'b' in 'abc' }} {{ 'x' not in 'abc' }} {{ 'a' < 'b' }}", "ababab True True True"}});
}

TEST(ChatTemplate, CollectionsFollowPython) {
  check({{"{{ l }} {{ (1,) }} {{ d }} {{ none }} {{ ['\"', \"'\"] }}", "[3, 1, 2] (1,) {'b': 1, 'a': [1.0, None, True, \"<x>&'\"]} None ['\"', \"'\"]"},
         {"{{ l[1:] }} {{ l[::-1] }} {{ l[-1] }} {{ l + [4] }} {{ l | sort }} {{ l | sort(reverse=true) }} {{ l | join('-') }}", "[1, 2] [2, 1, 3] 2 [3, 1, 2, 4] [1, 2, 3] [3, 2, 1] 3-1-2"},
         {"{{ d.b }} {{ d['b'] }} {{ d.get('zz', 5) }} {{ d.zz is defined }} {{ d.items() | list | length }} {{ 'a' in d }}", "1 1 5 False 2 True"},
         {"{{ d | dictsort | map('first') | list }} {{ d.keys() | list }}", "['a', 'b'] ['b', 'a']"},
         {"{{ users | selectattr('on') | map(attribute='n') | join }} {{ users | rejectattr('on', 'defined') | list }}", "x [{'n': 'y'}]"},
         {"{{ l | select('gt', 1) | list }} {{ range(5) | reject('odd') | list }} {{ l | min }} {{ l | max }} {{ l | sum }}", "[3, 2] [0, 2, 4] 1 3 6"},
         {"{{ [1, 1, 2] | unique | list }} {{ range(2, 9, 3) | list }} {{ l | first }} {{ l | last }} {{ empty | first is defined }}", "[1, 2] [2, 5, 8] 3 2 False"},
         {"{{ 'y' if empty else 'n' }} {{ empty or 'or' }} {{ l and 'and' }} {{ missing | default('d') }} {{ '' | default('d', true) }}", "n or and d d"}});
}

TEST(ChatTemplate, TestsTellTypes) {
  check({{"{{ t is boolean }} {{ n is boolean }} {{ n is integer }} {{ f is float }} {{ t is number }} {{ t is true }}", "True False True True True True"},
         {"{{ s is string }} {{ d is mapping }} {{ s is iterable }} {{ l is sequence }} {{ d is sequence }} {{ none is none }}", "True True True True True True"},
         {"{{ missing is undefined }} {{ missing is not defined }} {{ none is defined }} {{ n is divisibleby 7 }} {{ n is odd }}", "True True True True True"},
         {"{{ n is in [7] }} {{ 'a' is eq 'a' }} {{ n is gt 3 }} {{ s is callable }} {{ range is callable }}", "True True True False True"}});
}

TEST(ChatTemplate, JsonIsNeitherEscapedNorSorted) {
  check({{"{{ d | tojson }}", R"({"b": 1, "a": [1.0, null, true, "<x>&'"]})"},
         {"{{ s | tojson }} {{ 'a\"\\\\\\n/' | tojson }}", R"("Grüße, Welt" "a\"\\\n/")"},
         {"{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
         {"{{ d | tojson(separators=(',', ':')) }}", R"({"b":1,"a":[1.0,null,true,"<x>&'"]})"},
         {"{{ s | tojson(ensure_ascii=true) }}", R"("Gr\u00fc\u00dfe, Welt")"}});
}

TEST(ChatTemplate, StatementsAndScopes) {
  check({{"{% for x in l %}{{ loop.index0 }}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "03,11,22"},
         {"{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "1/2:3 2/2:2 "},
         {"{% for x in empty %}x{% else %}none{% endfor %}", "none"},
         {"{% for k, v in d.items() %}{{ k }}{{ loop.first }}{% endfor %}", "bTrueaFalse"},
         {"{% for x in range(9) %}{% if x == 1 %}{% continue %}{% elif x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}", "02"},
         {"{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "1"},
         {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "7"},
         {"{% if t %}{% set y = 5 %}{% endif %}{{ y }}", "5"},
         {"{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set c %}<{{ a }}>{% endset %}{{ c }}", "21<1>"},
         {"{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }} {{ m(1, b=3) }} {% call m(4) %}in{% endcall %}", "12 13 42in"},
         {"{% filter upper %}a{{ 'b' }}{% endfilter %} {% with z = 3 %}{{ z }}{% endwith %}[{{ z }}]", "AB 3[]"},
         {"{% raw %}{{ x }}{% endraw %}{# comment #}!", "{{ x }}!"},
         {"{% generation %}said{% endgeneration %}", "said"},
         {"{{ strftime_now('%Y-%m-%d %d %b %Y') }}", "2026-01-02 02 Jan 2026"},
         {"{% for x in l recursive %}{{ x }}{% if loop.depth < 2 %}({{ loop([8]) }}){% endif %}{% endfor %}", "3(8)1(8)2(8)"}});
}

TEST(ChatTemplate, WhitespaceControl) {
  check({{"a\n  {% if t %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
         {"a {%- if t -%} b {%- endif -%} c", "abc"},
         {"  {{ n }}  \n  x", "  7  \n  x"},
         {"  {%+ if t %}\nx{% endif +%}\ny", "  x\ny"},
         {"a\n{# c #}\nb{{- n -}}\n c", "a\nb7c"},
         {"x\r\n{% if t %}\r\ny{% endif %}", "x\ny"},
         {"a\n\n", "a\n"}});
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const std::map<std::string, std::vector<std::string>> cases = {
      {"a\n{{ 1 +", {"line 2"}},
      {"a\nb\n{% if x %}", {"line 3", "endif"}},
      {"{{ x | nosuch }}", {"line 1", "filter", "nosuch"}},
      {"\n{% unknown %}", {"line 2", "unknown"}},
      {"\n\n{{ missing.x }}", {"line 3", "missing"}},
      {"\n{{ missing + 1 }}", {"line 2", "missing"}},
      {"\n{{ 'a' + 1 }}", {"line 2"}},
      {"{{ 1 // 0 }}", {"line 1", "zero"}},
      {"{{ n() }}", {"line 1"}},
      {"{% for x in n %}{% endfor %}", {"line 1", "7"}},
      {"\n{{ raise_exception('Roles must alternate') }}", {"Roles must alternate"}},
      {"{{ l.append(1) }}", {"line 1", "append"}},
      {"{{ 'a'.__class__.__mro__ }}", {"line 1"}},
      {"{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}", {"line 2"}},
      {"{% set n.x = 1 %}", {"line 1", "namespace"}},
      {"{{ '", {"line 1"}},
      {"{% endif %}", {"line 1", "endif"}},
      {"{{ 99999999999999999999 }}", {"line 1"}},
      {"{# open", {"line 1", "comment"}}};
  for (const auto& [source, parts] : cases) {
    const std::string message = refusal(source, kVariables);
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << source << ": " << message;
  }
  EXPECT_NE(refusal(std::string("a\xff", 2)).find("UTF-8"), std::string::npos);
}

// Each of these would run for ever, or fill memory, in an interpreter without bounds.
TEST(ChatTemplateLimits, NothingRunsForEver) {
  std::string nested_for, nested_end;
  for (int i = 0; i < 12; ++i) {
    nested_for += "{% for x" + std::to_string(i) + " in range(1000) %}";
    nested_end += "{% endfor %}";
  }
  const std::string cases[] = {
      "{% for i in range(10**12) %}{% endfor %}",
      "{% for i in range(10**12) %}x{% endfor %}",
      "{{ range(10**12) | list }}",
      "{{ range(10**12) | sum }}",
      "{{ (range(10**12) | map('string') | join) }}",
      nested_for + nested_end,
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
      "{{ 'x' * 10**12 }}",
      "{{ [1] * 10**12 }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s.replace('x', 'xxxx') %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
      "{% set a = namespace(s='x') %}{% set b = namespace(s='x') %}{% for i in range(100) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
      "{{ 'x' | indent(10**12) }}{{ 'x\nx' | indent(10**12) }}",
      "{{ 'x'.ljust(10**12) }}",
      "{{ 'x' | center(10**12) }}",
      "{{ '%1000000000000d' % 1 }}",
      "{{ '{:1000000000000}'.format(1) }}",
      "{% for i in l recursive %}{{ loop(l) }}{% endfor %}",
      "{% set s = 'x' * 1000000 %}{% for i in range(1000000) %}{{ s }}{% endfor %}",
  };
  // A tenth of what is served with, so that sanitizers get through it too.
  const ChatTemplateLimits limits{.max_steps = 2'000'000, .max_output_bytes = 2 << 20, .max_memory_bytes = 32 << 20};
  for (const std::string& source : cases) {
    SCOPED_TRACE(source.substr(0, 120));
    EXPECT_NE(refusal(source, kVariables, limits).find("line 1"), std::string::npos);
  }
  EXPECT_NE(refusal(cases[0]).find("line 1"), std::string::npos);
}

TEST(ChatTemplateLimits, DeepNestingIsRefused) {
  const auto repeated = [](std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  constexpr int kDeep = 100'000;
  for (const std::string& source :
       {"{{ " + repeated("(", kDeep) + "1" + repeated(")", kDeep) + " }}", "{{ " + repeated("[", kDeep) + repeated("]", kDeep) + " }}",
        "{{ " + repeated("-", kDeep) + "1 }}", "{{ " + repeated("not ", kDeep) + "1 }}", repeated("{% if 1 %}", kDeep) + repeated("{% endif %}", kDeep),
        "{{ x" + repeated("['a']", kDeep) + " }}", "{{ 1" + repeated(" + 1", kDeep) + " }}", "{{ x" + repeated(" | trim", kDeep) + " }}",
        "{{ " + repeated("1 if 0 else ", kDeep) + "1 }}", "{% if 0 %}" + repeated("{% elif 0 %}", kDeep) + "{% else %}{{ missing.x }}{% endif %}"}) {
    SCOPED_TRACE(source.substr(0, 40));
    EXPECT_FALSE(refusal(source).empty());
  }
  // What people write is far from the bound.
  EXPECT_EQ(render("{{ " + repeated("(", 100) + "1" + repeated(")", 100) + " }}"), "1");
  EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'a'", 500) + " }}").size(), 501u);
}

TEST(ChatTemplateLimits, OutputAndStepsAreCounted) {
  const ChatTemplateLimits small{.max_steps = 1000, .max_output_bytes = 10};
  EXPECT_EQ(render("0123456789", "{}", small), "0123456789");
  EXPECT_NE(refusal("01234567890", "{}", small).find("10 bytes"), std::string::npos);
  EXPECT_EQ(render("{% for i in range(100) %}{% endfor %}", "{}", small), "");
  EXPECT_FALSE(refusal("{% for i in range(10000) %}{% endfor %}", "{}", small).empty());
}

// A refused rendering leaves nothing behind: the next one of the same template is whole.
TEST(ChatTemplate, RendersAgainAfterARefusal) {
  const ChatTemplate chat_template("{% for m in messages %}{{ m.role }}:{{ m.content + '' }};{% endfor %}");
  const auto good = parse_json(R"({"messages": [{"role": "user", "content": "a"}]})", "variables");
  const auto bad = parse_json(R"({"messages": [{"role": "user", "content": 1}]})", "variables");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(chat_template.render(good.as_object(), kNow), "user:a;");
    EXPECT_THROW(chat_template.render(bad.as_object(), kNow), Error);
  }
}

TEST(ChatTemplate, InvalidTextInVariablesBecomesReplacementCharacters) {
  json::object variables;
  variables["x"] = std::string("a\xff" "b");
  EXPECT_EQ(ChatTemplate("{{ x }}{{ x | length }}").render(variables, kNow), "a\uFFFDb3");
}

}  // namespace
}  // namespace cadre
