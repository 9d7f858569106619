"""The recorded store: unpacks it, and lists the commands that the tour runs in it."""

import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...common.whole_file import check_absent, check_parent_folder
from ...errors import Refused

ARCHIVE = Path(__file__).parent / "flights.tar.xz"
PROGRAM, SETTINGS = "flights.py", "slackwater.toml"
SNAPSHOT, STAGING = "before-release", "flights-staging"
_WORST = "SELECT carrier, flights, worst FROM carriers ORDER BY worst DESC LIMIT 3"


@dataclass(frozen=True, slots=True)
class TourStep:
    """Command of the tour, with a sentence that introduces it. `words` are the arguments after `slackwater`."""

    text: str
    words: tuple[str, ...]
    exit_code: int = 0


STEPS = (
    TourStep(
        "A streaming app sums up flights by carrier. Which delays are worst, in minutes?", ("query", "flights", _WORST)
    ),
    TourStep("United, weeks late? Ask the same at a snapshot.", ("query", f"flights@{SNAPSHOT}", _WORST)),
    TourStep(
        "A clone of that snapshot has read corrected events. What differs?",
        ("diff", STAGING, "flights", "--table", "carriers"),
        exit_code=1,
    ),
    TourStep("How did United's row change, commit by commit?", ("history", "flights/carriers", "UA", "--limit", "2")),
    TourStep(
        "No flight is a day late. Which commit broke that, and what had it read?",
        ("bisect", "flights", "--where", "SELECT carrier FROM carriers WHERE worst > 24 * 60"),
    ),
    TourStep(
        "And which record? The app's input is archived, so a query over it can be bisected, too.",
        ("bisect", "flights", "--where", "FROM input('flights') WHERE (decode(value)->>'arr_delay')::DOUBLE > 24 * 60"),
    ),
)
NEXT = (
    "slackwater log flights --limit 10",
    'slackwater query flights@~3 "SELECT * FROM aircraft ORDER BY legs DESC LIMIT 5"',
    "slackwater verify flights --deep",
    "slackwater serve",
)


def unpack(folder: Path | None, archive: Path = ARCHIVE) -> Path:
    """Unpack the recorded store into a new folder, by default a temporary one, and return the folder.

    Raises `Refused` if the folder exists or cannot be written, or if the archive has an entry that is no plain file
    below the folder.
    """
    if folder is not None:
        check_parent_folder(folder, "--folder")
        check_absent(folder, "--folder")
        folder = folder.absolute()
    target = folder or Path(tempfile.gettempdir())
    try:
        if folder is None:
            target = Path(tempfile.mkdtemp(prefix="slackwater-tour-"))
        else:
            folder.mkdir()
        with tarfile.open(archive) as entries:
            for entry in entries:
                _write_entry(entries, entry, target)
    except OSError as error:
        raise Refused(
            f"{target} cannot be written: {error.strerror or error}", hint="choose another --folder"
        ) from None
    return target


def _write_entry(entries: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    path = PurePosixPath(entry.name)
    content = entries.extractfile(entry) if entry.isreg() else None
    if content is None or path.is_absolute() or ".." in path.parts:
        raise Refused(f"the tour's archive has the entry {entry.name!r}; expected plain files in its folder")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("xb") as file:
        shutil.copyfileobj(content, file)
