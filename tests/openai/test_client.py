"""The official OpenAI Python client against `cadre serve models/demo`.

Run: python tests/openai/test_client.py BUILD/cadre [--counts FILE]. Without the openai package every test says skipped.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
import unittest

try:
    import openai
except ImportError:
    openai = None

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
KEY = "test-key"
QUESTION = [{"role": "user", "content": "What is a violin?"}]
ANSWER = "A black-and-white black cotton fish."  # models/demo/reference.json


class Server:
    """A server of the demo model on a free port, ended with SIGTERM."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program, "serve", os.path.join(ROOT, "models", "demo"), "--served-model-name", "demo", "--port", "0", "--api-key", KEY],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                self.url = found[0]
                break
        else:
            raise RuntimeError("the server did not start:\n" + "".join(self.lines))
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)


@unittest.skipIf(openai is None, "the openai package is not installed")
class ClientTest(unittest.TestCase):
    program = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.program)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0, timeout=60)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"the server ended with {code}:\n" + "".join(cls.server.lines)

    def chat(self, **kwargs):
        return self.client.chat.completions.create(**{"model": "demo", "messages": QUESTION, "temperature": 0, **kwargs})

    def test_models(self):
        model = self.client.models.list().data[0]
        self.assertEqual((model.id, model.object), ("demo", "model"))
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_chat_equals_the_reference(self):
        answer = self.chat()
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream_equals_whole(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), ANSWER)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, self.chat().usage.completion_tokens)
        self.assertEqual(len({(c.id, c.created, c.model) for c in chunks}), 1)

    def test_stream_without_usage_has_none(self):
        self.assertTrue(all(c.usage is None for c in self.chat(stream=True)))

    def test_length(self):
        answer = self.chat(max_completion_tokens=3)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 3)
        self.assertTrue(ANSWER.startswith(answer.choices[0].message.content))

    def test_stop_string(self):
        for stream in (False, True):
            answer = self.chat(stop=[" cotton"], stream=stream)
            text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices) if stream else answer.choices[0].message.content
            self.assertEqual(text, ANSWER[:ANSWER.index(" cotton")])

    def test_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertTrue(bytes(b for t in content for b in t.bytes).decode().startswith(ANSWER))
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob)  # greedy
            self.assertLessEqual(token.logprob, 0)

    def test_n_and_seed(self):
        def texts():
            answer = self.chat(n=4, seed=11, temperature=1.5, max_tokens=12)
            self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
            return [c.message.content for c in answer.choices]
        first = texts()
        self.assertGreater(len(set(first)), 1)
        self.assertEqual(first, texts())

    def test_stream_n(self):
        whole = self.chat(n=3, seed=4, temperature=1.2, max_tokens=16)
        text = ["", "", ""]
        ends = []
        for chunk in self.chat(n=3, seed=4, temperature=1.2, max_tokens=16, stream=True):
            for choice in chunk.choices:
                text[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    ends.append(choice.index)
        self.assertEqual(text, [c.message.content for c in whole.choices])
        self.assertEqual(sorted(ends), [0, 1, 2])

    def test_completions(self):
        answer = self.client.completions.create(model="demo", prompt=["Once upon a time there was", "Es war einmal"], temperature=0, max_tokens=8, logprobs=2, echo=True)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        for choice, prompt in zip(answer.choices, ["Once upon a time there was", "Es war einmal"]):
            self.assertTrue(choice.text.startswith(prompt))
            logprobs = choice.logprobs
            self.assertEqual(len({len(logprobs.tokens), len(logprobs.token_logprobs), len(logprobs.top_logprobs), len(logprobs.text_offset)}), 1)
            self.assertIsNone(logprobs.token_logprobs[0])
        stream = self.client.completions.create(model="demo", prompt="Es war einmal", temperature=0, max_tokens=8, stream=True)
        self.assertEqual("Es war einmal" + "".join(c.choices[0].text for c in stream), answer.choices[1].text)

    def test_errors_become_the_clients_exceptions(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="nobody")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[{"role": "user", "content": "word " * 2000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError):
            self.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0).models.list()
        self.assertEqual(self.chat().choices[0].message.content, ANSWER)

    def test_closing_a_stream_frees_the_server(self):
        stream = self.chat(stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.chat().choices[0].message.content, ANSWER)

    def test_many_at_once(self):
        results = [None] * 16

        def ask(i):
            results[i] = self.chat().choices[0].message.content
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [ANSWER] * len(results))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--counts")
    args = parser.parse_args()
    ClientTest.program = args.program
    started = time.monotonic()
    result = unittest.TextTestRunner(verbosity=1).run(unittest.defaultTestLoader.loadTestsFromTestCase(ClientTest))
    failed = len(result.failures) + len(result.errors)
    total = unittest.defaultTestLoader.loadTestsFromTestCase(ClientTest).countTestCases()
    skipped = total if openai is None else len(result.skipped)
    passed = total - skipped - failed
    print(f"openai client: {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - started:.1f} s")
    if args.counts:
        totals = [0, 0, 0]
        if os.path.exists(args.counts):
            with open(args.counts) as file:
                totals = json.load(file)
        with open(args.counts, "w") as file:
            json.dump([totals[0] + passed, totals[1] + failed, totals[2] + skipped], file)
        return 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
