"""The site as a reader sees it, in a real browser: pages, search, code blocks, widths, and no request anywhere else.

Chromium and its driver are those of the system (Debian: chromium, chromium-driver). Without them, or without mkdocs,
the tests are skipped; NATSPROTO_BROWSER=required makes that a failure.
"""

from __future__ import annotations

import dataclasses
import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import yaml  # type: ignore[import-untyped]

from tests.tools.public_api import public_modules

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).parent.parent
WAIT = 60  # seconds, far beyond what a page takes
FINDS = {
    "authentication": "credentials, password, creds, nkey, jwt, tls, certificate, tls ca",
    "security": "supply chain",
    "messaging": "headers, publish, subscribe, request, queue group, wildcard, request_many, slow consumer",
    "errors": "timeout, NoResponders, retry, exception",
    "command-line": "cannot connect, doctor, dead-letters, consumer lag, top",
    "connecting": "reconnect, max_reconnect_attempts, connection options, ping_interval, context, proxy, cluster",
    "jetstream-publishing": "batch, msg_id, deduplication, schedule, atomic batch, counter, cron",
    "jetstream-consumers": "at least once, fetch, consume, ordered consumer, durable, pull consumer, durable_name, "
    "rate limit",
    "acknowledging": "ack, nak, redelivery",
    "retries": "dead letter, poison message",
    "fields": "max_ack_pending, ack_wait, retention, max_age, max_deliver, num_replicas",
    "workers": "prefetch, concurrency, threads, worker",
    "jetstream-streams": "create_stream, backup, mirror, purge, replay, delete stream, how many messages",
    "key-value": "kv, watch, ttl, lock, compare and set, create_key_value, limit_marker_ttl, cache, key exists",
    "object-store": "object, files, progress",
    "services": "service",
    "observability": "health check, opentelemetry, logging",
    "howto/prometheus": "metrics",
    "howto/graceful-shutdown": "ctrl-c, graceful shutdown, sigterm, drain",
    "howto/notebooks": "jupyter, notebook",
    "howto/from-rabbitmq-celery": "celery, rabbitmq",
    "howto/from-kafka": "kafka",
    "howto/from-redis-streams": "redis",
    "howto/fastapi": "fastapi",
    "howto/django": "django",
    "howto/kubernetes": "kubernetes",
    "howto/docker-compose": "docker",
    "testing": "pytest, mock, server in tests",
    "howto/exactly-once": "exactly once",
    "sync": "sync, blocking client, without asyncio",
    "from-nats-py": "nats-py, migrate",
    "spark": "spark",
    "spark-deploy": "databricks, spark-submit",
    "typed": "pydantic, json",
    "events": "events, disconnected",
    "benchmarks": "benchmark",
    "changelog": "changelog",
}
"""What people type, and the page that is the first or second result for it."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


def unavailable(what: str, remedy: str) -> NoReturn:
    words = f"the site cannot be looked at: {what} is missing ({remedy})"
    if os.environ.get("NATSPROTO_BROWSER") == "required":
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``make docs`` builds it, every warning an error."""
    for module in ("material", "mkdocstrings"):
        if importlib.util.find_spec(module) is None:
            unavailable(module, "pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "-", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, input=(ROOT / "docs/mkdocs.yml").read_text(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "Formatting signatures requires" not in done.stderr
    return folder


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    if importlib.util.find_spec("selenium") is None:
        unavailable("selenium", "pip install --group test")
    program, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if program is None or driver is None:
        unavailable("chromium or chromedriver", "apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.set_page_load_timeout(WAIT)
    chrome.set_script_timeout(WAIT)
    yield chrome
    chrome.quit()


def log(browser: Chrome, kind: str) -> list[dict[str, str]]:
    """What came since the last time."""
    return browser.get_log(kind)  # type: ignore[no-any-return, no-untyped-call]


CUT = """
return [...document.querySelectorAll(arguments[0])].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => one.textContent.slice(0, 80))
"""


def pages(site: Path) -> list[str]:
    found = [path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")]
    return sorted(name for name in found if not name.startswith("decisions/"))


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """The reference leaves out nothing that ``__all__`` lists, except what is experimental or nats-py's."""
    html = "".join(path.read_text() for path in (site / "reference").rglob("index.html"))
    headings = set(re.findall(r'id="(natsproto[\w.]*)"', html))
    modules = [
        one for one in public_modules() if not one.__name__.startswith(("natsproto.protocol", "natsproto.compat"))
    ]
    names = {f"{module.__name__}.{name}" for module in modules for name in getattr(module, "__all__", ())}
    names -= {module.__name__ for module in modules}  # a page, without a heading of this kind
    names -= {f"natsproto.{name}" for name in ("NatsError", "NoResponders", "RequestTimeout")}  # of natsproto.errors
    assert len(names) > 300
    assert {name for name in names if not name.endswith("__")} - headings == set()


def text_of(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html)


def test_pages_of_the_reference_can_be_read(site: Path) -> None:
    pages = {path.parent.name: path.read_text() for path in (site / "reference").rglob("index.html")}
    assert [name for name, html in pages.items() if len(html.encode()) > 300_000] == []
    whole = "".join(pages.values())
    assert [word for word in ("__slots__", "LAYER_INTERFACE", "runtime: Runtime", "**given") if word in whole] == []
    signatures = [
        re.sub(r"<[^>]*>", "", signature)
        for signature in re.findall(r'doc-signature highlight"><pre>(.*?)</pre>', whole, re.DOTALL)
    ]
    lines = [line for signature in signatures for line in signature.split("\n")[1:] if "[" not in line]
    assert len(lines) > 1500
    assert [line for line in lines if re.search(r"\w: [^,]+, (?:\*|\w+:)", line)] == []
    assert pages["client"].count('href="../errors/#natsproto.errors.') > 30
    assert re.findall(r"<b><code>([^<]+)</code></b>(?:(?!<p>|<li).)*</li>", whole, re.DOTALL) == [], "without a text"
    internal = ("_start_hint", "portal: ", "<p>::", ">Choice<", ">Generic[", ": TypeAlias", "DEFAULT_EXPIRES_S")
    text = text_of(whole)
    assert [word for word in internal if word in whole or word in text] == []
    assert "Blocks; see KeyValue.put" in text
    assert "value: V,\n    *,\n    ttl: Ttl" in text_of(pages["sync-stores"])
    for field in ("max_msgs_per_subject", "allow_batched", "subject_delete_marker_ttl"):
        assert f"<b><code>{field}</code></b>" in pages["jetstream"], "create_stream lists the fields of StreamConfig"


def test_types_of_the_reference_are_known(site: Path) -> None:
    pages = {path.parent.name: path.read_text() for path in (site / "reference").rglob("index.html")}
    texts = {name: text_of(html) for name, html in pages.items()}
    unknown = ("HandlerResult", "StrPath", "TlsSource", "config: C\n", "JetStream(\n", "StaticGroup(\n")
    assert [(name, word) for name, text in texts.items() for word in unknown if word in text] == []
    assert 'LIMITS = "limits": Until a limit' in texts["stream-config"]
    assert texts["handlers"].count("with_middleware(\n") == 3, "the overloads without the implementation"
    assert "msg_id: str | None = ..." in texts["typing"].partition("MessageArgs(")[2].partition("ExpectationArgs(")[0]
    for link in ("../client/#natsproto.Client", "https://docs.python.org/3/library/collections.abc.html#"):
        assert link in pages["typing"] + pages["auth"], f"no link to {link}"


def test_names_of_nats_py_are_no_links(site: Path) -> None:
    assert "autorefs" not in (site / "compat/index.html").read_text()
    text = "".join((site / page / "index.html").read_text() for page in ("from-nats-py", "nats-py-names"))
    rows = re.findall(r"<tr>\n(<td[^\n]*)", text)
    assert len(rows) > 200
    assert [row for row in rows if "autorefs" in row] == []


def test_search_leaves_the_wire_protocol_out(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert len(found) > 1000
    assert [entry["location"] for entry in found if entry["location"].startswith("reference/protocol")] == []


def test_nothing_but_pages_and_programs_is_published(site: Path) -> None:
    kinds = {path.suffix for path in site.rglob("*") if path.is_file()}
    assert kinds <= {
        ".html",
        ".css",
        ".js",
        ".json",
        ".map",
        ".png",
        ".svg",
        ".xml",
        ".gz",
        ".inv",
        ".py",
        ".txt",
        ".yaml",
        ".yml",
    }


def test_llms_txt_says_what_each_page_is_about(site: Path) -> None:
    lines = [line for line in (site / "llms.txt").read_text().splitlines() if line.startswith("- ")]
    assert len(lines) == len(re.findall(r"\.md$", (ROOT / "docs/mkdocs.yml").read_text(), re.MULTILINE))
    guides = [line for line in lines if "/reference/" not in line]
    for line in guides:
        title, _, said = re.fullmatch(r"- \[(.+?)\]\((.+?)\)(?:: (.+))?", line).groups()  # type: ignore[union-attr]
        assert not said or not title.startswith(said.rstrip(".:")), line
    assert sum("): " in line for line in guides) > 0.8 * len(guides)


def test_options_of_the_reference_exist() -> None:
    """Where pydantic is installed, mkdocstrings ignores an option that it does not know; elsewhere it fails."""
    handler = pytest.importorskip("mkdocstrings_handlers.python")
    plugins = yaml.safe_load((ROOT / "docs/mkdocs.yml").read_text())["plugins"]
    [options] = [
        plugin["mkdocstrings"]["handlers"]["python"]["options"] for plugin in plugins if "mkdocstrings" in plugin
    ]
    assert options.keys() <= {field.name for field in dataclasses.fields(handler.PythonInputOptions)}


def test_nothing_is_asked_of_another_server(site: Path) -> None:
    tags = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*>")
    for path in site.rglob("*.html"):
        loaded = [tag for tag in tags.findall(path.read_text()) if 'rel="canonical"' not in tag]
        assert [tag for tag in loaded if re.search(r'(?:src|href)="(?:https?:)?//', tag)] == []


@pytest.mark.parametrize("width", [390, 800, 1300])
def test_pages_load_without_an_error_at_any_width(site: Path, url: str, browser: Chrome, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    log(browser, "browser")
    log(browser, "performance")
    for page in pages(site):
        browser.get(f"{url}{page}/")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        high = browser.execute_script("return parseFloat(getComputedStyle(document.querySelector('article')).fontSize)")
        assert wide <= width, f"{page} is {wide} pixels wide"
        if width == 1300 and not page.startswith("reference"):
            assert browser.execute_script(CUT, "article pre > code") == [], f"lines of {page} are cut"
        if width < 500:
            assert browser.execute_script(CUT, "article .md-typeset__scrollwrap") == [], f"a table of {page} is cut"
        assert high >= 14, f"the text of {page} is {high} pixels high"
    assert [entry["message"] for entry in log(browser, "browser") if entry["level"] == "SEVERE"] == []
    sent = (json.loads(entry["message"])["message"] for entry in log(browser, "performance"))
    asked = {entry["params"]["request"]["url"] for entry in sent if entry["method"] == "Network.requestWillBeSent"}
    assert len(asked) > len(pages(site))
    assert {address for address in asked if not address.startswith((url, "data:", "blob:"))} == set()


def test_search_finds_what_people_type(url: str, browser: Chrome) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    size = {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(url)
    query = browser.find_element(By.CSS_SELECTOR, "[data-md-component=search-query]")
    words = [(term, page) for page, terms in FINDS.items() for term in terms.split(", ")]
    assert len(words) >= 60
    wrong: list[str] = []
    for term, page in words:
        query.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
        WebDriverWait(browser, WAIT).until(lambda chrome: not results(chrome, url))
        query.send_keys(term)
        found: list[str] = []
        for _ in range(50):  # while a word is typed, its beginning has other results
            found = results(browser, url)
            if page in found[:2]:
                break
            time.sleep(0.05)
        else:
            wrong.append(f"{term}: {found[:4]} and not {page}")
    assert wrong == []


def results(chrome: Chrome, url: str) -> list[str]:
    """The pages that the search shows, the best first."""
    links = chrome.execute_script(
        "return [...document.querySelectorAll('a.md-search-result__link')].map(link => link.href)"
    )
    places = [re.sub(r"[?#].*", "", link).removeprefix(url).strip("/") for link in links]
    return list(dict.fromkeys(places))


def test_code_block_is_copied(url: str, browser: Chrome) -> None:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    browser.get(f"{url}quickstart/")
    block = browser.find_element(By.CSS_SELECTOR, "article .language-python code")
    button = browser.find_element(By.CSS_SELECTOR, "article .language-python button")
    webdriver.ActionChains(browser).move_to_element(block).move_to_element(button).click().perform()
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done, error => done(''))"
    copied = WebDriverWait(browser, WAIT).until(lambda chrome: chrome.execute_async_script(read))
    assert copied.strip() == block.text.strip()
    compile(copied, "copied", "exec")
