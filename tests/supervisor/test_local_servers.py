"""Model servers on this machine: found, asked in their own ways, never waited for long."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import pytest

from protocol.agent_spec import AgentSpec, ModelSettings
from supervisor.errors import ModelUnavailable
from supervisor.local_servers import OLLAMA_WINDOW, LocalServers, ServedModel, read_models
from supervisor.model_choice import ModelFlags, choose_model, model_notes, with_told_window
from supervisor.plain_http import Question, ask_all
from supervisor.provider_table import BUILTIN_PROVIDERS, LOCAL_WINDOW, PROVIDERS, ProviderTable
from tests.supervisor.local_http import FixedAnswers, listing

PLAIN = AgentSpec(name="own", system_prompt="x")


def told(**answers: object) -> dict[str, bytes]:
    paths = {"models": "models", "props": "/props", "studio": "/api/v0/models", "ps": "/api/ps", "show": "/api/show"}
    return {paths[name]: json.dumps(answer).encode() for name, answer in answers.items()}


def providers_at(**addresses: str) -> ProviderTable:
    """The built-in table with the local servers at these addresses; those that are left out are nowhere."""
    names = {name.replace("_", "-"): address for name, address in addresses.items()}
    local = [entry for entry in PROVIDERS if entry.is_local]
    moved = [msgspec.structs.replace(entry, base_url=names.get(entry.name, "http://127.0.0.1:1/v1")) for entry in local]
    return BUILTIN_PROVIDERS.with_entries(moved)


def choose(
    flags: ModelFlags,
    spec: AgentSpec,
    environ: dict[str, str],
    providers: ProviderTable = BUILTIN_PROVIDERS,
    servers: LocalServers | None = None,
) -> ModelSettings:
    """The model as a run chooses it: first which one, then its window."""
    servers = servers or LocalServers(5.0)
    chosen = choose_model(flags, spec, environ, providers, servers)
    return with_told_window(chosen, flags, spec, providers, servers)


# -- what they say ----------------------------------------------------------------------------------------------------


def test_each_kind_of_server_tells_its_window_in_its_own_way() -> None:
    models = listing("a", "b")
    props = {"default_generation_settings": {"n_ctx": 8192}}
    studio = {"data": [{"id": "a", "state": "loaded", "loaded_context_length": 4000, "max_context_length": 9}]}
    assert read_models(told(models=models, props=props))[0] == ServedModel(name="a", is_loaded=True, window=8192)
    assert read_models(told(models=listing("v", max_model_len=40_960))) == (
        ServedModel(name="v", is_loaded=True, window=40_960),
    )
    assert read_models(told(models=models, studio=studio)) == (ServedModel(name="a", is_loaded=True, window=4000),)
    running = {"models": [{"name": "b", "context_length": 16_384}]}
    assert read_models(told(models=models, ps=running)) == (
        ServedModel(name="a", window=OLLAMA_WINDOW),
        ServedModel(name="b", is_loaded=True, window=16_384),
    )


def test_an_ollama_model_that_is_not_running_will_have_the_window_of_its_file() -> None:
    answers = told(models=listing("q:latest"), ps={"models": []}, show={"parameters": 'stop "x"\nnum_ctx     32768\n'})
    assert read_models(answers, "q")[0].window == 32_768
    assert read_models(answers, "other")[0].window == OLLAMA_WINDOW


@pytest.mark.parametrize(
    "answers",
    [
        {},
        told(models=[]),
        told(models={"data": "x"}),
        told(models={"data": [{"object": "model"}]}),
        {"models": b"<html>"},
        {"models": b"[" * 100_000},
        told(props={}),
    ],
)
def test_what_is_no_list_of_models_is_no_model_server(answers: dict[str, bytes]) -> None:
    assert read_models(answers) == ()


@pytest.mark.parametrize("props", [{}, {"default_generation_settings": {"n_ctx": -1}}, [], "x"])
def test_a_window_that_can_not_be_read_is_left_open(props: object) -> None:
    assert read_models(told(models=listing("a"), props=props)) == (ServedModel(name="a", is_loaded=True),)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_a_server_that_answers_is_found_with_its_only_model_and_window() -> None:
    with FixedAnswers({"/v1/models": listing("qwen"), "/props": {"default_generation_settings": {"n_ctx": 5000}}}) as s:
        settings = choose(ModelFlags(), PLAIN, {}, providers_at(llama_cpp=s.url))
    assert (settings.provider, settings.model, settings.base_url) == ("llama-cpp", "qwen", s.url)
    assert settings.context_window == 5000
    notes = model_notes(ModelFlags(), PLAIN, settings)
    assert notes[0] == f"no provider was named: using qwen of llama-cpp at {s.url}"
    assert "5000 tokens here, which is little" in notes[1]


def test_the_one_loaded_model_is_chosen_among_many() -> None:
    models = [{"id": "a", "state": "not-loaded"}, {"id": "b", "state": "loaded"}, {"id": "e", "type": "embeddings"}]
    with FixedAnswers({"/v1/models": listing("a", "b", "e"), "/api/v0/models": {"data": models}}) as server:
        flags = ModelFlags(provider="lm-studio", base_url=server.url)
        settings = choose(flags, PLAIN, {})
    assert (settings.model, settings.context_window) == ("b", LOCAL_WINDOW)


def test_several_models_are_listed_to_choose_from() -> None:
    with FixedAnswers({"/v1/models": listing("a", "b", "nomic-embed-text"), "/api/ps": {"models": []}}) as server:
        providers = providers_at(ollama=server.url)
        for flags in (ModelFlags(), ModelFlags(provider="ollama")):
            with pytest.raises(ModelUnavailable, match="which model of ollama") as caught:
                choose(flags, PLAIN, {}, providers)
            assert caught.value.hints == ("a", "b")


def test_the_server_that_has_the_model_is_chosen() -> None:
    with FixedAnswers({"/v1/models": listing("a")}) as one, FixedAnswers({"/v1/models": listing("b")}) as other:
        providers = providers_at(llama_cpp=one.url, vllm=other.url)
        assert choose(ModelFlags(model="b"), PLAIN, {}, providers).provider == "vllm"
        assert choose(ModelFlags(), PLAIN, {}, providers).provider == "llama-cpp"
        with pytest.raises(ModelUnavailable, match="has no model 'c'") as caught:
            choose(ModelFlags(model="c"), PLAIN, {}, providers)
        assert caught.value.hints == ("a  (llama-cpp)", "b  (vllm)")


def test_a_key_that_is_set_decides_before_any_server_is_asked() -> None:
    with FixedAnswers({"/v1/models": listing("a")}) as server:
        flags = ModelFlags(model="m")
        settings = choose(flags, PLAIN, {"GROQ_API_KEY": "k"}, providers_at(vllm=server.url))
    assert settings.provider == "groq"
    assert server.asked == []


def test_nobody_is_asked_where_everything_is_given() -> None:
    with FixedAnswers({"/v1/models": listing("a")}) as server:
        flags = ModelFlags(provider="vllm", model="a", base_url=server.url, max_context_tokens=7)
        assert choose(flags, PLAIN, {}).context_window == 7
    assert server.asked == []


def test_the_key_goes_to_the_chosen_server_and_to_none_that_is_only_looked_for() -> None:
    with FixedAnswers({"/v1/models": listing("a", max_model_len=77)}) as server:
        flags = ModelFlags(base_url=server.url, model="a")
        settings = choose(flags, PLAIN, {"CORRAL_API_KEY": "sk-1"})
        assert settings.context_window == 77
        assert {authorization for *_, authorization in server.asked} == {"Bearer sk-1"}
        assert not any("/chat/completions" in path for _, path, *_ in server.asked)
        server.asked.clear()
        choose(ModelFlags(), PLAIN, {"VLLM_API_KEY": "sk-2"}, providers_at(ollama=server.url))
        assert {authorization for *_, authorization in server.asked} == {""}


@pytest.mark.parametrize("address", ["http://gpu.test:9/v1", "https://127.0.0.1:9/v1", "http://192.0.2.1:9/v1"])
def test_no_other_machine_is_asked(address: str) -> None:
    entry = PROVIDERS[0]
    started = time.monotonic()
    assert LocalServers(5.0).ask(entry, address, "") is None
    assert time.monotonic() - started < 2


# -- the requests -----------------------------------------------------------------------------------------------------


@contextmanager
def answering(*pieces: bytes, hang: bool = False) -> Generator[int, None, None]:
    """A server that sends these bytes to its one client, and then ends or stays."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                for piece in pieces:
                    connection.sendall(piece)
                if hang:
                    over.wait(20)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join(5)


def ask(port: int, seconds: float = 5.0) -> bytes | None:
    return ask_all([Question(host="127.0.0.1", port=port, path="/x")], seconds)[0]


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokmore", b"ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", None),
        (b"HTTP/1.1 404 Not Found\r\n\r\nno", None),
        (b"HTTP/1.1 302 Found\r\nLocation: /y\r\n\r\n", None),
        (b"SSH-2.0-OpenSSH\r\n", None),
        (b"", None),
    ],
)
def test_an_answer_is_read_in_any_of_its_forms_and_nothing_else_is_one(raw: bytes, body: bytes | None) -> None:
    with answering(raw) as port:
        assert ask(port) == body


def test_a_whole_answer_is_not_waited_on_though_the_connection_stays_open() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok", hang=True) as port:
        started = time.monotonic()
        assert ask(port, 10.0) == b"ok"
        assert time.monotonic() - started < 5


def test_a_silent_server_is_waited_for_no_longer_than_the_bound() -> None:
    with answering(hang=True) as port, FixedAnswers({"/x": 1}) as other:
        questions = [Question(host="127.0.0.1", port=each, path="/x") for each in (port, 1, other.port)]
        started = time.monotonic()
        assert ask_all(questions, 0.3) == [None, None, b"1"]
        assert 0.25 < time.monotonic() - started < 2


def test_all_questions_of_a_process_share_one_bound() -> None:
    with answering(hang=True) as port:
        servers = LocalServers(0.2)
        entry = PROVIDERS[0]
        assert servers.ask(entry, f"http://127.0.0.1:{port}/v1", "") is None
        started = time.monotonic()
        assert servers.ask(entry, f"http://127.0.0.1:{port}/v1", "") is None
        assert time.monotonic() - started < 0.1
