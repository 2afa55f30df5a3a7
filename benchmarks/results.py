"""What one command found, of one measure or of several, with what it depends on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.report import Report, flat


@dataclass(slots=True)
class Results:
    """The reports of one command."""

    about: dict[str, Any]
    reports: list[Report] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports)

    def as_data(self) -> dict[str, Any]:
        return {"date": self.date, "about": self.about, "measures": [report.as_data() for report in self.reports]}

    def as_json(self) -> str:
        return json.dumps(self.as_data(), indent=2)

    def as_table(self) -> str:
        about = [f"{name}: {flat(value)}" for name, value in {"date": self.date, **self.about}.items()]
        return "\n\n\n".join([*[report.as_table() for report in self.reports], "\n".join(about)])
