"""Which model is called, and where its address and key come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.agent_spec import AgentSpec, ModelSettings
from supervisor.errors import ModelUnavailable
from supervisor.model_choice import ModelFlags, choose_model, for_agent
from supervisor.provider_table import DEFAULT_WINDOW, LOCAL_WINDOW, PROVIDERS, find_provider, known_window

PLAIN = AgentSpec(name="own", system_prompt="x")
OPENAI = {"OPENAI_API_KEY": "sk-canary"}


def agent(**fields: object) -> AgentSpec:
    """An agent with some fields set."""
    from msgspec.structs import replace

    return replace(PLAIN, **fields)


def test_names_and_aliases_in_the_table_are_unique() -> None:
    names = [name for entry in PROVIDERS for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_every_provider_has_an_address_or_says_where_it_comes_from() -> None:
    without = {entry.name for entry in PROVIDERS if not entry.base_url}
    assert without == {"openai-compatible", "scripted"}


@pytest.mark.parametrize("name", ["lmstudio", "LM-Studio", "lm_studio"])
def test_an_alias_becomes_the_canonical_name(name: str) -> None:
    settings = choose_model(ModelFlags(provider=name, model="m"), PLAIN, {})
    assert (settings.provider, settings.adapter) == ("lm-studio", "openai_chat")
    assert settings.base_url == "http://127.0.0.1:1234/v1"


def test_the_one_key_that_is_set_decides() -> None:
    settings = choose_model(ModelFlags(model="m"), PLAIN, {"GROQ_API_KEY": "k", "MISTRAL_API_KEY": " "})
    assert (settings.provider, settings.api_key, settings.key_variable) == ("groq", "k", "GROQ_API_KEY")


def test_several_keys_need_a_choice() -> None:
    with pytest.raises(ModelUnavailable, match=r"openai \(OPENAI_API_KEY\), xai \(XAI_API_KEY\)"):
        choose_model(ModelFlags(model="m"), PLAIN, {**OPENAI, "XAI_API_KEY": "k"})


def test_a_local_server_s_key_variable_chooses_nothing() -> None:
    with pytest.raises(ModelUnavailable, match="no model to call"):
        choose_model(ModelFlags(model="m"), PLAIN, {"OLLAMA_API_KEY": "k"})


def test_an_address_alone_means_an_openai_compatible_server_and_gets_no_other_key() -> None:
    settings = choose_model(ModelFlags(base_url="https://models.test/v1/", model="m"), PLAIN, OPENAI)
    assert (settings.provider, settings.base_url, settings.api_key) == (
        "openai-compatible",
        "https://models.test/v1",
        "",
    )


def test_a_key_is_needed_only_at_the_provider_s_own_address() -> None:
    with pytest.raises(ModelUnavailable, match="set OPENAI_API_KEY"):
        choose_model(ModelFlags(provider="openai", model="m"), PLAIN, {})
    settings = choose_model(ModelFlags(provider="openai", model="m", base_url="http://127.0.0.1:9/v1"), PLAIN, {})
    assert settings.api_key == ""


@pytest.mark.parametrize("key", ["a b", "a\nb", "clé", "a\x00"])
def test_a_key_that_no_header_takes_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(ModelUnavailable, match="OPENAI_API_KEY holds characters") as caught:
        choose_model(ModelFlags(provider="openai", model="m"), PLAIN, {"OPENAI_API_KEY": key})
    assert key not in str(caught.value)


def test_white_space_around_a_key_is_left_out() -> None:
    settings = choose_model(ModelFlags(provider="openai", model="m"), PLAIN, {"OPENAI_API_KEY": " k\n"})
    assert settings.api_key == "k"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "h",
        "ftp://h/v1",
        "http://",
        "http://h:port/v1",
        "http://h:99999/v1",
        "http://[::1/v1",
        "http://u:p@h/v1",
        "http://h/v1?x=1",
        "http://h/v1#x",
        "http://h/v 1",
        "http://h/v1/chat/completions",
        "http://h\n/v1",
        "http://é.test/v1",
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ModelUnavailable, match=r"^--base-url "):
        choose_model(ModelFlags(provider="vllm", model="m", base_url=address), PLAIN, {})


def test_flags_win_over_the_agent_s_file() -> None:
    spec = agent(provider="ollama", model="file", max_tokens=1, temperature=0.5, max_context_tokens=10)
    settings = choose_model(ModelFlags(), spec, {})
    assert (settings.provider, settings.model, settings.max_tokens, settings.temperature, settings.context_window) == (
        "ollama",
        "file",
        1,
        0.5,
        10,
    )
    flags = ModelFlags(provider="vllm", model="flag", max_tokens=2, temperature=0.0, max_context_tokens=20)
    settings = choose_model(flags, spec, {})
    assert (settings.provider, settings.model, settings.max_tokens, settings.temperature, settings.context_window) == (
        "vllm",
        "flag",
        2,
        0.0,
        20,
    )


def test_a_model_named_for_another_provider_is_not_asked_of_this_one() -> None:
    with pytest.raises(ModelUnavailable, match="which model of vllm"):
        choose_model(ModelFlags(provider="vllm"), agent(provider="ollama", model="file"), {})


def test_context_windows() -> None:
    assert known_window("gpt-5-mini") == 400_000
    assert known_window("openai/GPT-4.1-nano") == 1_047_576
    assert known_window("nobody-knows") == DEFAULT_WINDOW
    assert choose_model(ModelFlags(provider="ollama", model="gpt-oss"), PLAIN, {}).context_window == LOCAL_WINDOW
    here = ModelFlags(base_url="http://localhost:1/v1", model="gpt-5")
    assert choose_model(here, PLAIN, {}).context_window == LOCAL_WINDOW
    there = ModelFlags(base_url="https://models.test/v1", model="gpt-5")
    assert choose_model(there, PLAIN, {}).context_window == 400_000


# -- the scripted model -----------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"agents": {"*": [{"reply": {"text": "Done."}}]}}))
    return path


def test_a_script_alone_means_the_scripted_model(script: Path) -> None:
    settings = choose_model(ModelFlags(script=str(script), base_url="http://ignored/v1"), PLAIN, OPENAI)
    assert (settings.provider, settings.adapter, settings.model) == ("scripted", "scripted", "scripted")
    assert settings.scenario == script.read_text()
    assert (settings.base_url, settings.api_key) == ("", "")


def test_a_script_for_another_provider_is_refused(script: Path) -> None:
    with pytest.raises(ModelUnavailable, match="--script belongs to --provider scripted, not to ollama"):
        choose_model(ModelFlags(provider="ollama", model="m", script=str(script)), PLAIN, {})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"agents": []}'])
def test_a_scenario_that_is_none_is_a_sentence_with_its_name(script: Path, content: bytes) -> None:
    script.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=str(script)):
        choose_model(ModelFlags(script=str(script)), PLAIN, {})


def test_under_the_scripted_model_no_agent_calls_another(script: Path) -> None:
    parent = choose_model(ModelFlags(script=str(script)), PLAIN, {})
    child = for_agent(agent(provider="openai", model="gpt-5"), parent, OPENAI)
    assert (child.adapter, child.model, child.api_key) == ("scripted", "scripted", "")


# -- sub-agents -------------------------------------------------------------------------------------------------------


@pytest.fixture
def parent() -> ModelSettings:
    flags = ModelFlags(provider="openai", model="gpt-5", base_url="http://127.0.0.1:9/v1", temperature=0.5)
    return choose_model(flags, PLAIN, OPENAI)


def test_a_child_takes_its_parent_s_provider_address_and_model(parent: ModelSettings) -> None:
    assert for_agent(PLAIN, parent, {}) == parent
    assert for_agent(agent(provider="openai"), parent, {}) == parent


def test_a_child_s_own_settings_come_first(parent: ModelSettings) -> None:
    spec = agent(max_tokens=9, temperature=0.0, max_context_tokens=99, reasoning_effort="low")
    child = for_agent(spec, parent, {})
    assert (child.max_tokens, child.temperature, child.context_window, child.reasoning_effort) == (9, 0.0, 99, "low")
    assert (child.model, child.base_url, child.api_key) == (parent.model, parent.base_url, parent.api_key)


def test_another_model_of_the_same_provider_keeps_address_and_key(parent: ModelSettings) -> None:
    child = for_agent(agent(model="gpt-4o"), parent, {})
    assert (child.model, child.base_url, child.api_key) == ("gpt-4o", parent.base_url, "sk-canary")


def test_another_provider_gets_its_own_address_and_key_and_none_of_the_parent_s(parent: ModelSettings) -> None:
    child = for_agent(agent(provider="groq", model="llama-3.3-70b"), parent, {"GROQ_API_KEY": "gsk"})
    entry = find_provider("groq")
    assert entry is not None
    assert (child.provider, child.base_url, child.api_key) == ("groq", entry.base_url, "gsk")
    assert (child.key_variable, child.context_window) == ("GROQ_API_KEY", 131_072)
    local = for_agent(agent(provider="ollama", model="m"), parent, OPENAI)
    assert (local.api_key, local.context_window) == ("", LOCAL_WINDOW)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (agent(provider="groq", model="m"), "groq needs a key: set GROQ_API_KEY"),
        (agent(provider="groq"), "names the provider groq but no model"),
        (agent(provider="openai-compatible", model="m"), "whose address only the command line may give"),
        (agent(provider="scripted", model="m"), "whose address only the command line may give"),
    ],
)
def test_a_child_whose_model_can_not_be_called_says_why(parent: ModelSettings, spec: AgentSpec, sentence: str) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        for_agent(spec, parent, OPENAI)
