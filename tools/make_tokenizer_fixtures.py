#!/usr/bin/env python3
"""Make tests/tokenizer: small tokenizers of every served kind, trained on the text below, with golden vectors.

Needs the PyPI package tokenizers (0.23.2 made what is committed). Every folder gets tokenizer.json, tokenizer_config.json
and vectors.jsonl with lines {"text", "ids", "decoded" where decode(ids) is not the text, "ids_special"}: the last as
encoded with special tokens. pre_tokenizers.jsonl and normalizers.jsonl beside the folders hold one part each, a text and
what the part makes of it. Usage: make_tokenizer_fixtures.py [folder]
"""
import json
import os
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "A violin is a wooden string instrument. The violinist draws a bow across four strings, and the body answers.",
    "It's older than you'd think: we've instruments from 1564, and they're still played. I'm sure they'll last.",
    "def tune(strings, pitch=440.0):\n    for i, s in enumerate(strings):\n        s.set(pitch * 1.5 ** (i - 2))\n    return strings\n",
    "for (int i = 0; i < n; ++i) {\n\tsum[i] += x[i] * 2;  // twice\n}\n",
    "Numbers: 1, 12, 123, 1234, 12345, 3.14159, $1,234.56, 50%, 2024-05-06, 0x1F.",
    "Die Geige hat vier Saiten; der Bogen ist mit Rosshaar bespannt. Schöne Grüße aus Köln, ganz groß!",
    "Le violon est un instrument à cordes frottées. L'été dernier, j'ai appris à jouer; c'était naïf mais ça m'a plu.",
    "El violín es el más pequeño y agudo. ¿Cuántas cuerdas tiene? ¡Cuatro, señor!",
    "Скрипка — струнный смычковый инструмент. У неё четыре струны.",
    "小提琴是一种弦乐器，共有四根弦。演奏者用弓拉弦。", "ヴァイオリンは弦楽器です。四本の弦があります。", "바이올린은 현악기이다. 줄이 네 개 있다.",
    "The end. The end? The end!   Three spaces,    four spaces.\n\nA new paragraph\tand a tab.",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")

PARTS = ["", " ", "  ", "     ", "\n", "\n\n", "\r\n", "\t", " \n ", "the", "The", " violin", "It's", "WE'LL", "it’s", "'S",
         "1", "12345", "１２", "½", "²", "٣٤", "naïve", "nai\u0308ve", "e\u0301\u0323", "\u0301", "ﬁ", "Straße", "İ", "ſ",
         "скрипка", "ЁЛКА", "弦", "四根弦。", "ヴァイオリン", "ひらがな", "바이올린", "\u1100\u1161", "مرحبا", "हिन्दी", "ไทย", "😀",
         "👩\u200d👧", "🇩🇪", "\U0001FAE8", "\u200b", "\u00a0", "\u3000", "\u180e", "\u0085", "\ufeff", "\x00", "\x7f", "\ufffd",
         "a", "B", "_", "__init__", "{}", "()", "[x]", "<", "|", "<|", "|>", "<s>", "</s>", "<unk>", "<|end|>", "<|user|>",
         "<mask>", "▁", "▁▁", " ▁", "x▁y", "http://a.b/c?d=e&f#g", "...", "…", "—", "\"", "'", "`", "\\", "/", "%", "@", "#",
         "!=", "->", "==", ";", "Ünïcödé", "x" * 70, " " * 40, "ab" * 30, "\U00020000", "\U0010FFFD"]


def texts(seed):
    rng = random.Random(seed)
    made = list(PARTS) + CORPUS
    for _ in range(60):
        made.append("".join(rng.choice(PARTS) + (" " if rng.random() < 0.3 else "") for _ in range(rng.randint(2, 12))))
    return made


def byte_level(pre_tokenizer, size=420, ignore_merges=False, specials=("<s>", "</s>")):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=list(specials), show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_after(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece(byte_fallback=True, fuse_unk=True, size=480):
    """Trained on words that start with U+2581; callers then set the normalizer and pre-tokenizer that are published."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, limit_alphabet=90, show_progress=False,
                                  special_tokens=["<unk>", "<s>", "</s>"] + (BYTES if byte_fallback else []))
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


def add_bos(tokenizer, bos="<s>"):
    return processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                         special_tokens=[(bos, tokenizer.token_to_id(bos))])


def llama_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def spm_legacy():
    """Mixtral, Llama 2: the metaspace is the normalizer's, there is no pre-tokenizer."""
    tokenizer = sentencepiece()
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = llama_decoder()
    tokenizer.post_processor = add_bos(tokenizer)
    return tokenizer


def spm_metaspace():
    """The newer form of the same, as transformers converts it when legacy is off."""
    tokenizer = sentencepiece()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = llama_decoder()
    tokenizer.post_processor = add_bos(tokenizer)
    return tokenizer


def spm_unknown():
    """No byte fallback: unknown characters; Metaspace as decoder, which drops every U+2581 of the first token."""
    tokenizer = sentencepiece(byte_fallback=False, fuse_unk=False, size=300)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {3,}"), "  ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return tokenizer


def gemma():
    tokenizer = sentencepiece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def llama3():
    tokenizer = byte_level(bytes_after(split(GPT4)), ignore_merges=True)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), add_bos(tokenizer)])
    return tokenizer


def neox():
    """OLMoE: NFC, GPT-2's pattern inside ByteLevel, added tokens of spaces."""
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def kimi_k2():
    return byte_level(bytes_after(split(KIMI)))


def deepseek_v2():
    """Splits one after the other, and digits one by one."""
    return byte_level(bytes_after(split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
                                  split(r"[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(individual_digits=True)))


def falcon():
    """ByteLevel is not the last step: the digits are split in the byte alphabet."""
    steps = [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
             pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]
    return byte_level(pre_tokenizers.Sequence(steps))


def prefix_space():
    """ByteLevel with add_prefix_space, and words kept by an inverted split."""
    steps = [split(r"\w+|[^\w\s]+", "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
    tokenizer = byte_level(pre_tokenizers.Sequence(steps))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase(), normalizers.NFD()])
    return tokenizer


# Flags of the tokens added to each tokenizer, at ids after the vocabulary.
ADDED = [("<|end|>", {"special": True}), ("<|user|>", {"special": False}), ("<mask>", {"special": True, "lstrip": True}),
         ("<|", {"special": False, "normalized": True}), ("[x]", {"special": False, "single_word": True})]
EXTRA = {"neox": [("  ", {"special": False, "normalized": True}), ("    ", {"special": False, "normalized": False}),
                  ("->", {"special": False, "rstrip": True})]}


def add_tokens(tokenizer, name):
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    # Training marks the byte tokens as added; in published files they are not, so "<0x41>" in a text is six characters.
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in BYTES]
    next_id = max(vocab.values()) + 1
    for content, flags in ADDED + EXTRA.get(name, []):
        if content in vocab:
            continue
        token = {"id": next_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": False, **flags}
        data["added_tokens"].append(token)
        next_id += 1
    data["added_tokens"].sort(key=lambda token: token["id"])
    if name in ("spm_legacy", "deepseek_v2"):  # the older form of merges
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    return data


def write(folder, name, make):
    data = add_tokens(make(), name)
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as out:
        json.dump(data, out, ensure_ascii=False, separators=(",", ":"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
    with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    with open(os.path.join(path, "vectors.jsonl"), "w", encoding="utf-8") as out:
        for text in texts(name):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            line = {"text": text, "ids": ids}
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            if decoded != text:
                line["decoded"] = decoded
            line["ids_special"] = tokenizer.encode(text, add_special_tokens=True).ids
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


# Regular expressions in Oniguruma's syntax: what published files use, and where it differs from PCRE2's.
PATTERNS = [
    GPT4, KIMI, r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s",
    r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"\s?\p{P}+", r"\s+$", r"^\s+", r"$", r"^", r"\d", r"\w+", r"\W+", r"\b", r"\B",
    r"[\W_]+", r"[^\W_]+", r"[^\w\s]+", r"[^\S\r\n]+", r".", r"(?m:.)", r"(?i)the|VIOLIN", r"(?i)ſ", r"(?i-m:A)|b",
    r"a{2}+", r"x{2,3}?", r"x{,2}", r"x*", r"", r"(?=i)", r"(?<=n)e", r"(?<!\s)t", r"\h+", r"\H+", r"\v", r"\u5f26",
    r"[\u4e00-\u9fff]+", r"[a-z&&[^aeiou]]+", r"[^a-z&&[^aeiou]]+", r"[a-d[x-z]]+", r"[^a-d[x-z]]+", r"[a-d[^a-z]]+",
    r"[[a-f]&&[d-z]&&[^e]]+", r"[[:alpha:]]+", r"[[:^alpha:]]+", r"[[:punct:]]+", r"[[:space:][:digit:]]+", r"[[:word:]]+",
    r"[[:print:]]+", r"[[:graph:]]+", r"[[:cntrl:]]", r"\p{Alpha}+", r"\p{^L}+", r"\P{L}+", r"\P{^L}+", r"\p{Cyrillic}+",
    r"\p{Hiragana}+|\p{Katakana}+", r"\p{Han}+", r"\p{Letter}+", r"\p{Punct}+", r"\p{S}+", r"\p{M}", r"\R", r"\A\s*", r"\s*\z",
    r"(a|b)\1", r"(?<q>['\"]).*?\k<q>", r"(?>a+)b?", r"a?+b", r"[\]a-]+", r"[a\-z]+", r"[-a]+", r"[.$^*+?(){}|/]+", r"a|b|",
    r"(a*)*", r"(a*)+b?", r"(?:a|ab)(?:c|bcd)?", r"[\x00-\x1f]", r"[^\x00-\x7F]+", r"\{|\}", r"{", r"a{", r"[\s\S]", r"\S+\s?",
    r"\d{1,3}(?=(?:\d{3})*\b)", r"[^\p{L}\p{N}\s]", r"(?i:[a-z])+"]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def parts():
    """(kind, JSON of the part) of all pre-tokenizers and normalizers to record."""
    def regex(pattern, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}

    for pattern in PATTERNS:
        yield "pre_tokenizers", regex(pattern)
    for behavior in BEHAVIORS:
        for invert in (False, True):
            yield "pre_tokenizers", regex(r"\s|\d", behavior, invert)
            yield "pre_tokenizers", {"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": invert}
        yield "pre_tokenizers", {"type": "Punctuation", "behavior": behavior}
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            yield "pre_tokenizers", metaspace
            yield "pre_tokenizers", {"type": "Sequence", "pretokenizers": [regex(r"\n"), metaspace]}
    for prefix in (False, True):
        for use_regex in (False, True):
            yield "pre_tokenizers", {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}
        yield "pre_tokenizers", {"type": "Digits", "individual_digits": prefix}
    yield "pre_tokenizers", {"type": "Whitespace"}
    yield "pre_tokenizers", {"type": "WhitespaceSplit"}
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel"):
        yield "normalizers", {"type": kind}
    for left, right in ((True, True), (True, False), (False, True)):
        yield "normalizers", {"type": "Strip", "strip_left": left, "strip_right": right}
    yield "normalizers", {"type": "Prepend", "prepend": "▁"}
    yield "normalizers", {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    yield "normalizers", {"type": "Replace", "pattern": {"Regex": r"\s+$|^"}, "content": "#"}
    yield "normalizers", {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "NFC"}]}


def write_parts(folder):
    """Eight random texts for each part."""
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    out = {kind: open(os.path.join(folder, kind + ".jsonl"), "w", encoding="utf-8") for kind in ("pre_tokenizers", "normalizers")}
    for kind, part in parts():
        tokenizer = Tokenizer.from_str(json.dumps({**empty, kind[:-1]: part}))
        rng = random.Random(json.dumps(part))
        for _ in range(8):
            text = "".join(rng.choice(PARTS + CORPUS) + (" " if rng.random() < 0.3 else "") for _ in range(rng.randint(1, 9)))
            if kind == "normalizers":
                result = tokenizer.normalizer.normalize_str(text)
            else:
                result = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
            line = {"part": part, "text": text, "result": result}
            out[kind].write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "tests", "tokenizer")
    for make in (spm_legacy, spm_metaspace, spm_unknown, gemma, llama3, neox, kimi_k2, deepseek_v2, falcon, prefix_space):
        write(folder, make.__name__, make)
    write_parts(folder)


if __name__ == "__main__":
    main()
