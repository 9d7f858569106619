"""What is in flight on every channel of a cut that may be damaged: what the manifests in between say, if they can."""

from dataclasses import dataclass

from ...errors import Corruption, NotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ..cut.graph import Channel, Cut, channels
from ..cut.in_flight import InFlight, stretch
from .report import as_sentence


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel of the cut, and what is in flight to one receiver."""

    channel: Channel
    in_flight: InFlight | None
    """None when the manifests in between do not say."""
    exact: bool
    """Whether `in_flight.rows` is the receiver's own: a clone's first version says how much it copied for all."""
    wrong: tuple[str, ...] = ()


def channel_states(store: ObjectStore, cut: Cut) -> tuple[ChannelState, ...]:
    """Every channel of the cut that a stage reads, once for each reader, and what the manifests say is in flight.

    Reads the senders' manifests between what was consumed and the cut.
    """
    return tuple(_state(store, cut, channel) for channel in channels(cut) if channel.input is not None)


def _state(store: ObjectStore, cut: Cut, channel: Channel) -> ChannelState:
    if misshapen := _misshapen(cut, channel):
        return ChannelState(channel, None, False, (misshapen,))
    try:
        state = stretch(store, cut, channel)
        between = range(state.after + 1, state.up_to + 1)
        copied = any(history.read(store, cut.app, channel.sender, each).begins for each in between)
    except (Corruption, NotFound) as error:
        return ChannelState(channel, None, False, (f"{_name(channel)}: {as_sentence(error)}",))
    alone = sum(other.name == channel.name for other in channels(cut)) == 1
    return ChannelState(channel, state, alone or not copied)


def _misshapen(cut: Cut, channel: Channel) -> str:
    output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
    if source is None:
        return ""
    lengths = {
        len(output.ends),
        len(source.offsets),
        len(output.sent),
        *(len(each or output.ends) for each in (source.consumed, source.lost)),
    }
    if len(lengths) == 1:
        return ""
    found = ", ".join(map(str, sorted(lengths)))
    return f"{_name(channel)}: ends, sent, offsets, consumed and lost are of {found} partitions; expected one number"


def _name(channel: Channel) -> str:
    return f"{channel.name} from {channel.sender} to {channel.receiver}"
