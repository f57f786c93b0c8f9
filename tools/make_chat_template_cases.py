#!/usr/bin/env python3
"""Make tests/chat_template/*.jsonl: what Jinja2 renders in the environment that Hugging Face transformers sets up.

Needs the package jinja2 (3.1.6 made what is committed). Lines hold "template" (source) or "file" (beside the cases),
"variables" (else those of the file's first line), and "rendered" or "error": true. Left out is where this interpreter
means to differ: integers past 64 bits, complex numbers, output that names Python's types or addresses, include, import, block, self.
Usage: make_chat_template_cases.py [folder]
"""
import datetime
import json
import os
import random
import re
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 1, 2)
VARIABLES = {
    "n": 7, "neg": -3, "z": 0, "f": 2.5, "big": 1e20, "s": "Grüße, Welt", "w": "  pad me\n", "e": "", "num": "42",
    "html": "<a href='x'>&amp; \"q\"</a>", "t": True, "b": False, "none": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"],
    "nested": [[1, 2], [3], []], "pairs": [[1, "a"], [2, "b"]], "d": {"b": 1, "a": [1.0, None, True], "C": "x"}, "ed": {}, "el": [],
    "users": [{"name": "Bob", "age": 5, "on": True, "tags": ["x"]}, {"name": "alice", "age": 3, "on": False}, {"name": "Carl", "age": 5}],
    "lines": "one\ntwo\n\nthree\r\nfour\n", "csv": "a,b,,c", "uni": "ÀÉîõü ß ŉ ǆ ﬁ İ 中文 😀", "fmt": "{} {x} {0}", "pct": "%s and %d",
    "deep": {"x": {"y": [10, {"q": "end"}]}}, "tree": [{"v": 1, "c": [{"v": 2, "c": []}]}, {"v": 3, "c": []}],
}
TEXTS = "s w e num html lines csv uni".split()
SEQUENCES = "l ls nested pairs users el range(4) d.items() s (1,'a') ['b',none,2.5,'B']".split()
ANYTHING = TEXTS + SEQUENCES + "n neg z f big t b none d ed deep missing d.missing 1.0 'x' users[0]".split()

# Names with their argument lists; a sample of (value, name, arguments) becomes cases.
TEXT_FILTERS = {
    "upper": [""], "lower": [""], "title": [""], "capitalize": [""], "trim": ["", "' p'", "chars='e \\n'"], "length": [""], "list": [""],
    "replace": ["'e','E'", "' ','_',1", "'',1", "'','-'", "'a'"], "indent": ["", "2,true", "2,true,true", "'> '", "width=3,blank=true"],
    "truncate": ["5", "5,true", "7,false,'…'", "3,leeway=0", "2"], "wordcount": [""], "center": ["20", "5"], "e": [""], "striptags": [""],
    "urlencode": [""], "int": ["", "5", "default=9", "0,16"], "float": ["", "1.5"], "format": ["1", "'a',2", "x=1"], "first": [""],
    "last": [""], "reverse": ["", ")|list|length"], "tojson": ["", "ensure_ascii=true", "indent=2"], "string": [""], "safe": [""], "abs": [""],
}
SEQUENCE_FILTERS = {
    "join": ["", "', '", "'-',attribute='name'", "1"], "sort": ["", "true", "attribute='name'", "attribute='age,name'", "case_sensitive=true"],
    "map": ["attribute='name')|list", "'upper')|list", "attribute='age',default=0)|list", "'length')|list", "attribute=0)|list", "'replace','a','b')|list"],
    "select": [")|list", "'string')|list", "'gt',1)|list", "'in',[1,2])|list", "'none')|list", "'nosuch')|list"], "reject": ["'odd')|list", "'eq','a')|list"],
    "selectattr": ["'on')|list", "'age','gt',3)|list", "'tags','defined')|map(attribute='name')|list"], "rejectattr": ["'tags','undefined')|list"],
    "batch": ["2)|list", "2,'x')|list"], "slice": ["2)|list", "3,'x')|list"], "unique": [")|list", "attribute='age')|list", "true)|list"],
    "groupby": ["'age'", "attribute='on',default=none", "'age')|map('last')|list"], "sum": ["", "attribute='age'", "start=10"], "min": ["", "true"],
    "max": ["", "attribute='name'"], "first": [""], "last": [""], "reverse": [")|list"], "length": [""], "tojson": ["", "indent=2", "separators=(',',':')"],
    "dictsort": ["", "by='value'", "reverse=true"], "items": [")|list"], "list": [""], "default": ["'D'", "'D',true"], "string": [""], "xmlattr": [""],
}
NUMBER_FILTERS = {"round": ["", "1", "2,'floor'", "0,'ceil'", "-1"], "abs": [""], "int": ["", "0"], "float": [""], "string": [""], "filesizeformat": ["", "true"],
                  "tojson": [""], "default": ["1", "1,true"], "length": [""], "join": [""], "attr": ["'x'", "'upper'"], "title": [""]}
METHODS = {
    "split": ["", "','", "',',1", "none,1", "''"], "rsplit": ["',',1", "none,1"], "strip": ["", "' p'"], "lstrip": ["'G '"], "rstrip": ["'t\\n'"],
    "startswith": ["'G'", "('x',' ')", "'r',1"], "endswith": ["'t'", "('e','x')"], "find": ["'e'", "'l',3", "'zz'"], "rfind": ["'e'"], "index": ["'e'", "1"],
    "count": ["'e'", "1", "''"], "join": ["ls", "['a','b']", "d", "l"], "splitlines": ["", "true"], "zfill": ["5"], "ljust": ["8,'*'"], "rjust": ["8"],
    "center": ["9", "9,'-'"], "partition": ["','"], "rpartition": ["' '"], "removeprefix": ["'Gr'"], "removesuffix": ["'lt'"], "upper": [""], "lower": [""],
    "title": [""], "capitalize": [""], "swapcase": [""], "casefold": [""], "isdigit": [""], "isalpha": [""], "isspace": [""], "isupper": [""], "format": ["1,x=2"],
    "replace": ["'e','E',1"], "expandtabs": [""], "items": [")|list"], "keys": [")|list"], "values": [")|list"], "get": ["'a'", "'zz',5", "'b'"], "append": ["1"],
    "pop": [""], "update": ["{}"], "copy": [""],
}
TESTS = ("boolean callable defined divisibleby(2) eq(7) escaped even false filter float ge(2) gt(2) in([7,'']) integer iterable lower lt(3) mapping ne(0) none "
         "number odd sameas(none) sequence string test true undefined upper").split()
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
SUBSCRIPTS = ["0", "-1", "99", "'a'", "'name'", "1:", "::-1", ":2", "-2:", "1:-1", "::2", "none:2", "5:1:-2", "::0", "true", "1.5"]
OPERANDS = "n neg z f s e num t none l el d missing 2 -1 0.5 'ab' (1,2) [1] {'a':1} true".split()


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True)).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime)
    return env


ENV = environment()
PYTHON_ONLY = re.compile(r" at 0x|<generator|<built-in|<bound|<class|<Macro|<LoopContext|Undefined|\d{20}(?!\.)|\dj\)", re.I)


def outcome(source, variables):
    """{"rendered": text}, {"error": True}, or None where the output is Python's own."""
    try:
        text = ENV.from_string(source).render(**json.loads(json.dumps(variables)))
    except RecursionError:
        return None
    except Exception:  # whatever Python raises, the template is refused
        return {"error": True}
    return None if PYTHON_ONLY.search(text) else {"rendered": text}


def expressions(rng):
    """Every kind of filter, method, test, operator and subscript, on values it is for and others."""
    found = [f"{value} is {test}" for value in ANYTHING for test in TESTS]
    found += [f"{a} {op} {b}" for a in OPERANDS for b in OPERANDS for op in OPERATORS]
    found += [f"{value}[{i}]" for value in TEXTS + SEQUENCES + ["d", "n", "missing"] for i in SUBSCRIPTS]
    def call(value, mark, name, args):  # arguments that close their own bracket go on after it
        return f"{value}{mark}{name}({args}" + ("" if ")|" in args else ")")

    for values, filters in ((TEXTS, TEXT_FILTERS), (SEQUENCES + ["d"], SEQUENCE_FILTERS), ("n neg z f big t none missing num s".split(), NUMBER_FILTERS)):
        found += [call(value, " | ", name, args) for value in values for name in filters for args in filters[name]]
    found += [call(value, ".", name, args) for value in TEXTS + ["d", "l", "n"] for name in METHODS for args in METHODS[name]]
    rng.shuffle(found)
    return ["{{ " + expression + " }}" for expression in found]


class Statements:
    """Random nests of statements, with every kind of whitespace and its control."""

    NAMES = "n s l d t none e x y i ns loop users m item missing".split()
    ATOMS = NAMES + ("1 'z' [1,2] (1,2) {'a':1} ns.a loop.index loop.first loop.last loop.length loop.revindex0 loop.depth loop.previtem loop.cycle('o','e') "
                     "loop.changed(n) d.b users[0].name i.name m() m(1) m(1,2) m(b=3) m(1,2,3,z=4) varargs kwargs 1_0 0x1f 1.5e2 '\\x41\\u00e9'").split() + ["'a' 'b'"]
    LOOPS = ["i in l", "x in users", "i in d", "i, j in d.items()", "i, x in pairs", "n in range(3)", "x in el", "i in s", "x in missing", "i in users if i.on",
             "x in l|sort", "(i, n) in d|items", "i in 5", "i in nested"]
    MACROS = ["", "a", "a, b=2", "a=1", "a, b=a", "x, y='d'", "a=n", "caller=none"]

    def __init__(self, rng):
        self.rng = rng

    def pick(self, options):
        return self.rng.choice(options)

    def space(self):
        return self.pick(["", " ", "\n", "  \n", "\n  ", "\t", "\n\n", "\r\n"]) if self.rng.random() < 0.5 else ""

    def tag(self, words):
        return self.pick(["{%", "{%", "{%-", "{%+"]) + self.pick([" ", "", "\n "]) + words + self.pick([" ", ""]) + self.pick(["%}", "%}", "-%}", "+%}"])

    def expression(self, depth=0):
        kind = self.rng.random()
        if depth > 1 or kind < 0.45:
            return self.pick(self.ATOMS)
        a, b = self.expression(depth + 1), self.expression(depth + 1)
        if kind < 0.6:
            return f"{a} {self.pick(['+', '~', '==', 'and', 'or', 'in', '<', 'not in', '*', '-'])} {b}"
        if kind < 0.75:
            return f"{a} | {self.pick(['length', 'upper', 'list', 'join', 'default(1)', 'string', 'first', 'tojson', 'trim', 'sort'])}"
        if kind < 0.9:
            return f"{a} if {b}" + self.pick(["", f" else {self.expression(depth + 1)}"])
        return self.pick([f"not {a}", f"({a})", f"{a} is defined", f"{a} is not none"])

    def body(self, depth):
        return "".join(self.node(depth + 1) for _ in range(self.rng.randrange(4)))

    def node(self, depth=0):
        kind = self.rng.choices(["text", "print", "comment", "if", "for", "set", "macro", "call", "filter", "with", "raw", "generation"],
                                [25, 20, 5, 12, 14, 9, 5, 3, 2, 2, 2, 2])[0]
        if depth > 3:
            kind = "text"
        return self.space() + getattr(self, "make_" + kind)(depth) + self.space()

    def make_text(self, _):
        return self.pick(["x", "<a>", "Hi ", "{", "}", "%", "{ {", "#", "é", "\"", "line\n", "  indented", "}}", "%}", "#}", "\\n"])

    def make_print(self, _):
        return self.pick(["{{", "{{", "{{-", "{{+"]) + self.pick([" ", ""]) + self.expression() + " " + self.pick(["}}", "-}}"])

    def make_comment(self, _):
        return self.pick(["{#", "{#-", "{#+"]) + self.pick([" c ", "", "{{ x }}", "\n"]) + self.pick(["#}", "-#}", "+#}"])

    def make_if(self, depth):
        source = self.tag("if " + self.expression()) + self.body(depth)
        for _ in range(self.rng.randrange(2)):
            source += self.tag("elif " + self.expression()) + self.body(depth)
        return source + self.pick(["", self.tag("else") + self.body(depth)]) + self.tag("endif")

    def make_for(self, depth):
        jump = "{% if " + self.expression(1) + " %}" + self.tag(self.pick(["break", "continue"])) + "{% endif %}" + self.body(depth)
        source = self.tag("for " + self.pick(self.LOOPS)) + self.body(depth) + self.pick(["", "", jump]) + self.pick(["", "", self.tag("else") + self.body(depth)])
        return self.pick([source + self.tag("endfor")] * 9 + [self.tag("for i in tree recursive") + "{{ i.v }}{{ loop(i.c) }}" + self.tag("endfor")])

    def make_set(self, depth):
        return self.pick([self.tag(f"set {self.pick(['x', 'y', 'i', 'n', 'l'])} = {self.expression()}"), self.tag("set ns = namespace(a=1)"),
                          self.tag("set ns.a = " + self.expression(1)), self.tag("set x, y = 1, 2"), self.tag(self.pick(["set x", "set y | upper"])) + self.body(depth) + self.tag("endset")])

    def make_macro(self, depth):
        return self.tag(f"macro m({self.pick(self.MACROS)})") + self.body(depth) + self.pick(["", "{{ a }}{{ b }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller(1) if caller }}"]) + self.tag("endmacro")

    def make_call(self, depth):
        return self.tag(self.pick(["call ", "call(u) ", "call(u, v=1) "]) + self.pick(["m()", "m(1)", "m(1, b=2)"])) + self.body(depth) + "{{ u }}" + self.tag("endcall")

    def make_filter(self, depth):
        return self.tag("filter " + self.pick(["upper", "trim", "replace('x', 'y')", "upper | trim", "length"])) + self.body(depth) + self.tag("endfilter")

    def make_with(self, depth):
        return self.tag("with " + self.pick(["x=1", "x=1, y=x", "n=2", ""])) + self.body(depth) + "{{ x }}" + self.tag("endwith")

    def make_raw(self, _):
        return self.tag("raw") + self.pick(["{{ x }}", "{% if %}", "\n x", " "]) + self.tag("endraw")

    def make_generation(self, depth):
        return self.tag("generation") + self.body(depth) + self.tag("endgeneration")


class Conversations:
    """Messages and tools of every shape the API lets through."""

    TEXTS = ["Hello", "<think>\nhm\n</think>\n\nyes", "Grüße, 日本 😀", "  spaced  ", "\n\nlines\n", "a \"quoted\" & <b>tag</b> 'x'", "", "</think>", "{\"temp\": 21}",
             "\ttab", "<think>", "ok</think>", "{{ x }}", "</s>", "<result>x</result>", "\\n \\ \u2028"]

    def __init__(self, rng):
        self.rng = rng

    def chance(self, probability):
        return self.rng.random() < probability

    def text(self):
        return " ".join(self.rng.choice(self.TEXTS) for _ in range(self.rng.choice([1, 1, 2])))

    def value(self, depth=0):
        scalars = [self.text(), 0, -5, 10**12, 1.5, 1.0, 1e-7, True, False, None, [], {}]
        if depth > 2 or self.chance(0.7):
            return self.rng.choice(scalars)
        if self.chance(0.5):
            return [self.value(depth + 1) for _ in range(self.rng.randrange(3))]
        return {self.rng.choice(["a", "city", "x-y", "é"]): self.value(depth + 1) for _ in range(self.rng.randrange(3))}

    def content(self):
        if self.chance(0.75):
            return self.text()
        if self.chance(0.3):
            return None
        return [self.rng.choice([{"type": "text", "text": self.text()}, {"type": "text", "text": self.text()}, {"type": "image"}, self.text()]) for _ in range(self.rng.randrange(1, 4))]

    def schema(self, depth=0):
        kind = self.rng.choice(["string", "integer", "boolean", "array", "object", ["string", "null"], "enum"])
        schema = {"type": kind}
        if kind == "enum":
            schema = {"type": "string", "enum": ["a", self.text()]}
        elif kind == "array" and depth < 2:
            schema["items"] = self.schema(depth + 1)
        elif kind == "object" and depth < 2:
            schema["properties"] = {name: self.schema(depth + 1) for name in self.rng.sample(["a", "b", "c d"], 2)}
        if self.chance(0.6):
            schema["description"] = self.text()
        if self.chance(0.2):
            schema["default"] = self.value(2)
        return schema

    def tool(self):
        function = {"name": self.rng.choice(["get_weather", "f", "add"]), "description": self.text()}
        if self.chance(0.9):
            names = self.rng.sample(["city", "unit", "x"], self.rng.randrange(3))
            function["parameters"] = {"type": "object", "properties": {name: self.schema() for name in names}, "required": names[:1]}
        return {"type": "function", "function": function}

    def tool_call(self, i):
        arguments = {self.rng.choice(["city", "unit", "x"]): self.value() for _ in range(self.rng.randrange(4))}
        return {"id": f"call_{i}", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments) if self.chance(0.2) else arguments}}

    def messages(self):
        found = [{"role": self.rng.choice(["system", "system", "developer"]), "content": self.text()}] if self.chance(0.5) else []
        for turn in range(self.rng.randrange(1, 4)):
            found.append({"role": "user", "content": self.content()})
            if self.chance(0.2):
                continue
            answer = {"role": "assistant", "content": self.content()}
            if self.chance(0.3):
                answer["reasoning_content"] = self.text()
            if self.chance(0.4):
                answer["tool_calls"] = [self.tool_call(turn * 10 + i) for i in range(self.rng.randrange(1, 4))]
            found.append(answer)
            found += [{"role": "tool", "tool_call_id": call["id"], "content": self.content()} for call in answer.get("tool_calls", [])]
        return found

    def variables(self):
        given = {"messages": self.messages(), "add_generation_prompt": self.chance(0.7), "bos_token": "<s>", "eos_token": "</s>"}
        if self.chance(0.6):
            given["tools"] = [self.tool() for _ in range(self.rng.randrange(3))] if self.chance(0.8) else None
        for name, value in (("enable_thinking", False), ("thinking", True), ("reasoning_effort", "high"), ("date_string", "26 Jul 2024"), ("documents", [{"title": "t"}])):
            if self.chance(0.25):
                given[name] = value
        return given


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def sample(sources, wanted, max_refused):
    """Lines for the first `wanted` of sources that have an outcome, at most a share of them refused."""
    lines, num_refused = [], 0
    for source in sources:
        result = outcome(source, VARIABLES)
        if result is None or ("error" in result and num_refused >= max_refused * wanted):
            continue
        num_refused += "error" in result
        lines.append({"template": source, **result})
        if len(lines) == wanted:
            break
    return [{"variables": VARIABLES}] + lines


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "tests", "chat_template")
    rng = random.Random(20260102)
    write_lines(os.path.join(folder, "expressions.jsonl"), sample(expressions(rng), 2000, 0.25))
    statements = Statements(rng)
    nests = ("".join(statements.node() for _ in range(rng.randrange(1, 5))) for _ in range(100000))
    write_lines(os.path.join(folder, "statements.jsonl"), sample((nest for nest in nests if 60 < len(nest) < 400), 500, 0.2))
    conversations = Conversations(rng)
    lines = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".jinja")):
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
            source = file.read()
        for variables in [conversations.variables() for _ in range(16)]:
            lines.append({"file": name, "variables": variables, **outcome(source, variables)})
    write_lines(os.path.join(folder, "conversations.jsonl"), lines)


if __name__ == "__main__":
    main()
