"""What the tests of the Python client share. `tests/clients/run` starts the servers and says where they are."""

import os
import re
import time
import urllib.request

import openai
import pytest


class Server:
    """One of the servers under test, with a client for it."""

    def __init__(self, url, key):
        self.url = url
        self.key = key
        # A retry would hide a refusal.
        self.options = {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0, "timeout": 60}
        self.client = openai.OpenAI(**self.options)
        self.model = self.client.models.list().data[0].id

    def figures(self):
        """The figures of /metrics by name and labels."""
        request = urllib.request.Request(f"{self.url}/metrics", headers={"authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def wait_until(self, holds):
        """Waits until the figures are as they should be; a server that never gets there fails the test."""
        for _ in range(600):
            figures = self.figures()
            if holds(figures):
                return figures
            time.sleep(0.05)
        pytest.fail(f"the server does not get there: {figures}")

    def wait_idle(self):
        names = ["foretoken_requests_running", "foretoken_requests_waiting", "foretoken_kv_pages_used"]
        return self.wait_until(lambda figures: all(figures[name] == 0 for name in names))

    def refused(self, status):
        """How often a request was answered with `status`."""
        answered = re.compile(rf'foretoken_http_requests_total\{{.*status="{status}"')
        return sum(value for name, value in self.figures().items() if answered.match(name))


@pytest.fixture(scope="session")
def server():
    """A server as it comes."""
    return Server(os.environ["FORETOKEN_URL"], "any")


@pytest.fixture(scope="session")
def strict():
    """A server that wants a key, runs one request at a time with one waiting, and takes bodies of 10,000 bytes."""
    return Server(os.environ["FORETOKEN_STRICT_URL"], os.environ["FORETOKEN_STRICT_KEY"])


@pytest.fixture
def chat(server):
    """Asks for a short answer to one question, the same each time unless the test says otherwise."""

    def ask(**more):
        messages = [{"role": "user", "content": "Name three colours."}]
        asked = {"model": server.model, "messages": messages, "seed": 7, "max_tokens": 12} | more
        return server.client.chat.completions.create(**asked)

    return ask
