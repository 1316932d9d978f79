"""The trust modes as a client chooses them: as the modes of a session, and as one of its options."""

from __future__ import annotations

from protocol.agent_spec import TRUST_WIDTH, AgentSpec, Trust
from supervisor.acp_agent.core.updates import ConfigOption, ConfigValue, Mode, ModeState

MODE_OPTION = "mode"
"""The id of the option; it and the session's mode are always the same."""

_MODES = (
    Mode(id="plan", name="Plan", description="Only reads: changes are described, not made"),
    Mode(id="safe", name="Ask", description="Asks before each change and each command"),
    Mode(id="auto", name="Auto", description="Works in the project without asking"),
)


def modes_for(spec: AgentSpec) -> tuple[Mode, ...]:
    """The modes that a session with the agent may have: none wider than the agent's own."""
    return tuple(mode for mode in _MODES if spec.trust is None or TRUST_WIDTH[mode.id] <= TRUST_WIDTH[spec.trust])


def mode_state(current: Trust, spec: AgentSpec) -> ModeState:
    """The modes, for those clients that know no options."""
    return ModeState(current_mode_id=current, available_modes=modes_for(spec))


def config_options(current: Trust, spec: AgentSpec) -> tuple[ConfigOption, ...]:
    """The options of a session."""
    values = tuple(ConfigValue(value=mode.id, name=mode.name, description=mode.description) for mode in modes_for(spec))
    option = ConfigOption(id=MODE_OPTION, name="Trust", category="mode", current_value=current, options=values)
    return (option,)
