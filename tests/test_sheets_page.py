"""The preference page in a real browser (headless Chromium): keys, draft, files, and not one request or violation."""

import json
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest
import websocket

from rapo_lib.dialogue import Turn
from rapo_lib.measures.sheets import Pair, make_key, make_sheets, write_sheets
from rapo_lib.measures.votes import read_votes

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


class Browser:
    """One page over Chromium's DevTools protocol."""

    def __init__(self, url):
        self.socket = websocket.create_connection(url, timeout=30, suppress_origin=True)
        self.events, self.count = [], 0
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, path):
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && !!document.querySelector('.item:not([hidden])')")

    def js(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression):
        until = time.monotonic() + 20
        while not self.js(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.05)

    def press(self, key):
        code = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, " ": 32}.get(key, ord(key[0]))
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


@contextmanager
def browser(folder):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
               f"--user-data-dir={folder / 'profile'}", "--disable-dev-shm-usage", "about:blank"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Browser(page_url(folder / "profile" / "DevToolsActivePort"))
    finally:
        process.terminate()
        process.wait(20)


def page_url(file):
    """The first page's address: Chromium writes its port to a file in its profile once it listens."""
    from urllib.request import urlopen

    until = time.monotonic() + 60
    while not file.exists() or len(file.read_text().split()) < 2:
        assert time.monotonic() < until, "Chromium did not start"
        time.sleep(0.1)
    with urlopen(f"http://127.0.0.1:{file.read_text().split()[0]}/json/list", timeout=20) as answer:
        return next(t["webSocketDebuggerUrl"] for t in json.load(answer) if t["type"] == "page")


def downloaded(path):
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until, f"{path} was not saved"
        time.sleep(0.1)
    return path


def test_a_sheet_from_first_key_to_saved_file(tmp_path):
    history = (Turn("seeker", f"I am tired. {ATTACK}"),)
    pairs = [Pair(id=f"p{k}", history=history, replies=(("one", ATTACK), ("two", f"b{k}"))) for k in range(3)]
    [sheet] = make_sheets(pairs, obvious=1, repeats=0)
    page = write_sheets([sheet], tmp_path / "kit") / "sheets" / "sheet_1.html"
    with browser(tmp_path) as tab:
        tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        tab.open(page)
        assert tab.js("document.title") == f"Which reply is better? Sheet {sheet.id}"
        assert tab.js("document.querySelectorAll('.item:not([hidden])').length") == 1
        assert tab.js("document.querySelectorAll('img, iframe').length") == 0

        for key in ("1", "ArrowRight", "2", "ArrowRight", "3"):  # A, B, about equal; the last item stays open
            tab.press(key)
        assert tab.js("document.getElementById('progress').textContent") == "3 of 4 answered"
        tab.js("document.getElementById('save-json').click()")
        assert tab.js("document.activeElement.id") == "annotator"  # no code yet, so nothing is saved
        for letter in "ann7":
            tab.press(letter)
        assert tab.js("document.getElementById('progress').textContent") == "3 of 4 answered"  # 7 was typing

        tab.js("document.getElementById('annotator').blur()")
        tab.open(page)  # the draft survives
        assert tab.js("document.getElementById('annotator').value") == "ann7"
        assert tab.js("document.getElementById('progress').textContent") == "3 of 4 answered"
        assert tab.js("document.querySelector('.item:not([hidden])').dataset.item") == sheet.items[2].id
        tab.press("ArrowRight")
        for key in ("Tab", "Tab", " "):  # by Tab alone: from the item to its first answer
            if tab.js("document.activeElement.type") != "radio":
                tab.press(key)
        tab.press(" ")
        assert tab.js("document.getElementById('progress').textContent") == "4 of 4 answered"
        tab.js("document.querySelector('.item:not([hidden]) textarea').value = '=1+1, \"quoted\"\\nsecond line'")

        tab.js("document.getElementById('save-json').click()")
        tab.js("document.getElementById('save-csv').click()")
        files = [downloaded(tmp_path / f"answers_{sheet.id}.{kind}") for kind in ("json", "csv")]
        asked = [e["params"]["request"]["url"] for e in tab.events if e["method"] == "Network.requestWillBeSent"]
        assert asked and all(url.startswith(("file:", "blob:file:", "blob:null")) for url in asked), asked
        troubles = [e for e in tab.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
        assert not troubles, troubles

    for file in files:
        votes = read_votes([file], make_key([sheet]))
        assert not votes.problems
        assert votes.table.choice.tolist() == ["A", "B", "tie", "A"] and set(votes.table.annotator) == {"ann7"}
        assert votes.table.comment.iloc[3].startswith("'=1+1")


def test_the_policy_really_stops_a_script(tmp_path):
    """The same page with a script added by hand: the browser must refuse it, else the test above proves nothing."""
    [sheet] = make_sheets(
        [Pair(id="p", history=(Turn("seeker", "x"),), replies=(("one", "a"), ("two", "b")))], repeats=0
    )
    page = write_sheets([sheet], tmp_path / "kit") / "sheets" / "sheet_1.html"
    page.write_text(page.read_text().replace("</main>", "<script>document.title = 'owned'</script></main>"))
    with browser(tmp_path) as tab:
        tab.open(page)
        assert "owned" not in tab.js("document.title")
        assert any("Content Security Policy" in json.dumps(e) for e in tab.events if e["method"] == "Log.entryAdded")
