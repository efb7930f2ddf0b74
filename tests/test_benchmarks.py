"""The benchmark: its traffic is real and the same for all clients, its figures are what they say, and it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import growth, worker_table
from benchmarks.__main__ import Servers, main, servers
from benchmarks.drivers import DRIVERS, Run
from benchmarks.feeder import Feeder
from benchmarks.report import BEGIN, END, ON_PYTHON_313, Comparison, Ratio, felt, page, write_page
from benchmarks.scenarios import FELT, SCENARIOS, Scenario
from benchmarks.traffic import Traffic
from benchmarks.worker import load
from natsproto.testing import run_server


def scenario(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


def measured(name: str, ours: float, theirs: float, *, pairs: int = 9) -> Comparison:
    judged = scenario(name).judged
    one = Comparison(scenario(name), "uvloop")
    one.figures = {"natsproto": [{judged: ours}] * pairs, "nats-py": [{judged: theirs}] * pairs}
    return one


def test_traffic_repeats_with_its_seed_only(seed: int) -> None:
    for one in SCENARIOS:
        assert one.traffic.messages(seed, 20) == one.traffic.messages(seed, 20)
        if one.traffic.size in ("real", "short"):
            assert one.traffic.messages(seed, 20) != one.traffic.messages(seed + 1, 20)


def test_traffic_is_not_all_alike(seed: int) -> None:
    messages = Traffic(headers=True).messages(seed, 2000)
    sizes = [len(message.payload) for message in messages]
    assert (min(sizes) >= 40, max(sizes) <= 4096) == (True, True)
    assert len(set(sizes)) > 300
    assert len({message.subject for message in messages}) > 700
    assert len({message.headers["Nats-Msg-Id"] for message in messages if message.headers}) == 2000
    same = sum(a.subject == b.subject for a, b in pairwise(messages))
    assert same < 50


def test_traffic_of_keys_never_repeats(seed: int) -> None:
    assert len({message.subject for message in Traffic(subjects=-1).messages(seed, 1000)}) == 1000


def test_ratio_above_one_means_natsproto_is_better() -> None:
    cpu = measured("wildcard_def", 2.0, 5.0)
    assert str(cpu.ratio("cpu_us")) == "2.50 (2.50-2.50)"
    assert cpu.verdict == "reach"
    assert measured("wildcard_def", 6.0, 5.0).verdict == "SLOWER"
    assert measured("wildcard_def", 4.0, 5.0).verdict == "short"
    assert measured("object_get", 500.0, 20.0).verdict == "aim"
    assert Ratio.of([1.0, 2.0, 3.0]).middle == 2.0


def test_failed_scenario_is_reported() -> None:
    one = Comparison(scenario("pub"), "uvloop", failure="nats-py: ended without a word")
    assert one.verdict == "FAILED"
    assert "**FAILED**" in page([one], "versions", "command")


def test_page_names_every_scenario(tmp_path: Path) -> None:
    rows = [measured(one.name, 2.0, 5.0, pairs=3) for one in SCENARIOS]
    text = page(rows, "versions", "command")
    assert all(f"`{one.name}`" in text for one in SCENARIOS)
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(path, text)
    assert path.read_text().startswith("before\n")
    assert path.read_text().endswith("after\n")
    assert "old" not in path.read_text()
    path.write_text("no marks")
    with pytest.raises(ValueError, match="no lines"):
        write_page(path, text)


def test_first_table_is_what_users_feel() -> None:
    assert FELT.keys() <= {one.name for one in SCENARIOS}
    rows = [measured(name, 2.0, 5.0) for name in FELT]
    judged = next(one for one in rows if one.scenario.name == "pub")
    judged.figures |= dict(zip(ON_PYTHON_313, ([{"cpu_us": 2.0}], [{"cpu_us": 6.0}]), strict=True))
    lines = felt(rows, "versions").splitlines()
    assert len(lines) < 30  # one screen
    assert "| publish as fast as it goes | 2.5 x | 3 x |  |" in [
        line.replace("\N{MULTIPLICATION SIGN}", "x") for line in lines
    ]


@pytest.fixture(scope="module")
def places() -> Iterator[Servers]:
    with servers() as at:
        yield at


@contextmanager
def feeding(url: str, one: Scenario) -> Iterator[None]:
    feeder = Feeder(url, one)
    serving = threading.Thread(target=feeder.serve, daemon=True)
    serving.start()
    try:
        yield
    finally:
        feeder.close()
        serving.join()


@pytest.mark.filterwarnings("ignore:parameter 'timeout':DeprecationWarning")  # how nats-py calls aiohttp
@pytest.mark.parametrize("client", ["natsproto", pytest.param("nats-py", marks=pytest.mark.variant)])
@pytest.mark.parametrize("name", [one.name for one in SCENARIOS])
async def test_scenario_is_fair(places: Servers, name: str, client: str, seed: int) -> None:
    """Drivers fail when a message is lost, doubled or damaged; here they do a little of what they do when measured."""
    one, count = scenario(name), 12
    with feeding(places.feeder[one.transport], one):
        run = Run(load(client), one, places.client[one.transport], f"smoke-{client}-{name}", count)
        driver = DRIVERS[one.does](run)
        await anext(driver)
        for number in range(1 if one.fresh else 2):
            figures = await driver.asend(seed % 1_000_000 + number)
            assert one.judged in figures
        await driver.aclose()
        await run.close()


@pytest.mark.slow
def test_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--no-node", "--loop=asyncio", "--only=pace_js_ack,fetch_ack"]) == 0
    said = capsys.readouterr().out
    assert "\nfetch_ack " in said
    assert "\npace_js_ack " in said


@pytest.mark.slow
def test_growth_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    growth.main(["--quick"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[4:9]] == ["| 1", "| 10", "| 100", "| 1,000", "| 10,000"]
    assert (lines[-2].startswith("1,310 messages"), lines[-1].startswith("2,000 subscriptions")) == (True, True)


def test_table_of_workers_has_rows() -> None:
    with run_server(jetstream=True) as server:
        rows = [*worker_table.rows_of_times(server.url, 0.01, seconds=0.05, repeat=1)]
        silences = [*worker_table.rows_of_silence(server.url, seconds=0.1, repeat=1)]
    text = worker_table.text_of(rows, silences, "command")
    widths = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert widths == [11] * 6 + [7] * 6
