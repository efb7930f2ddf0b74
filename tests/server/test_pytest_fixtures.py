"""The pytest fixtures of natsproto, as users have them: in runs of pytest of their own."""

from __future__ import annotations

from typing import Any

import pytest

from natsproto.testing import Server

pytest_plugins = ["pytester"]


async def test_nats_client_is_connected_to_nats_server(nats_server: Server, nats_client: Any) -> None:
    assert nats_client.server_info.raw["jetstream"] is True
    await nats_client.flush()
    assert nats_client.server_info.port == nats_server.port


ASYNC_TEST = """
import pytest

{mark}
async def test_client(nats_server, nats_client):
    await nats_client.flush()
    assert nats_client.server_info.port == nats_server.port
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "mark"), [("strict", "@pytest.mark.asyncio"), ("auto", "")])
def test_fixtures_work_for_users_in_both_asyncio_modes(pytester: pytest.Pytester, mode: str, mark: str) -> None:
    pytester.makepyfile(ASYNC_TEST.format(mark=mark))
    pytester.runpytest_subprocess(f"--asyncio-mode={mode}").assert_outcomes(passed=1)


@pytest.mark.slow
def test_shared_server_and_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        urls = []

        def test_first(nats_session_server, nats_server):
            urls.append(nats_session_server.url)
            assert nats_server.url != nats_session_server.url

        def test_second(nats_session_server, nats_cluster):
            assert urls == [nats_session_server.url]
            assert len(nats_cluster.urls) == 3 and all(server.running for server in nats_cluster.servers)
    """)
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=2)


@pytest.mark.slow
def test_server_fixture_needs_no_asyncio_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_server(nats_server): assert nats_server.running")
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=1)


@pytest.mark.slow
def test_client_fixture_without_asyncio_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("async def test_a(nats_client): pass\ndef test_b(jetstream): pass")
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:anyio")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["the fixtures nats_client and jetstream need pytest-asyncio: *"] * 2)


@pytest.mark.slow
def test_anyio_runs_the_client_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        async def test_a(nats_client):
            await nats_client.flush()
        """
    )
    pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "ignore").assert_outcomes(passed=1)


def test_pytest_imports_natsproto_with_a_fixture_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_without():
            assert not [name for name in sys.modules if name.partition(".")[0] == "natsproto"]
            assert "pytest_natsproto" in sys.modules
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


@pytest.mark.slow
def test_fixture_without_binary_fails_its_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROTO_SERVER_BINARY", "/nowhere/nats-server")
    pytester.makepyfile("def test_a(): pass\ndef test_b(nats_server): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ServerNotFound: no nats-server binary in*"])
