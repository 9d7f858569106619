"""Records of a test network whose stages are branches of a bank.

A branch keeps a part of every transfer it gets and sends the rest on in equal shares. The transfer alone determines
both parts, so any two runs over the same deposits end with the same accounts.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slackwater.chandy_lamport.global_state import StageChannels

DEPOSIT = 60


class Transfer(NamedTuple):
    name: str
    """Unique name that shows the transfer's origin. It is the same in every run."""
    receiver: str
    amount: int


class Account(NamedTuple):
    balance: int = 0
    applied: frozenset[str] = frozenset()


class Bank:
    def __init__(self, stages: Mapping[str, StageChannels]) -> None:
        self.writer = {channel: name for name, stage in stages.items() for channel in stage.outputs}
        self.readers = {
            channel: tuple(sorted(name for name, stage in stages.items() if channel in stage.inputs))
            for channel in self.writer
        }
        self.destinations = {
            name: tuple((channel, reader) for channel in sorted(stage.outputs) for reader in self.readers[channel])
            for name, stage in stages.items()
        }

    def deposits(self, stage: str, first: int, end: int) -> list[Transfer]:
        """Return records `first` to `end` of a source's topic, which is unlimited."""
        return [Transfer(f"{stage}{number}", stage, DEPOSIT) for number in range(first, end)]

    def apply(self, account: Account, transfers: Iterable[Transfer]) -> tuple[Account, list[tuple[str, Transfer]]]:
        """Return the receiver's new account and the transfers that it sends, with their channels."""
        balance, applied = account.balance, set(account.applied)
        sent: list[tuple[str, Transfer]] = []
        for transfer in transfers:
            assert transfer.name not in applied, f"{transfer} was applied twice"
            applied.add(transfer.name)
            balance += transfer.amount
            destinations = self.destinations[transfer.receiver]
            share = transfer.amount // (len(destinations) + 1)
            for channel, reader in destinations if share else ():
                sent.append((channel, Transfer(f"{transfer.name} {channel}/{reader}", reader, share)))
                balance -= share
        return Account(balance, frozenset(applied)), sent

    def settle(self, accounts: Mapping[str, Account], transfers: Iterable[Transfer]) -> dict[str, Account]:
        """Return the final accounts, after these transfers and all transfers that result from them have arrived."""
        settled = dict(accounts)
        waves: dict[str, list[Transfer]] = {}
        pending = list(transfers)
        while pending:
            waves.clear()
            for transfer in pending:
                waves.setdefault(transfer.receiver, []).append(transfer)
            pending = []
            for receiver, arrived in waves.items():
                settled[receiver], sent = self.apply(settled[receiver], arrived)
                pending += (transfer for _, transfer in sent)
        return settled
