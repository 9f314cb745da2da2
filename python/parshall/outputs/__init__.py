"""What ``--json`` prints: one type for each command, from which its JSON schema in ``docs/formats/schemas`` is made.

The types are for schemas, tests and agents; commands print what they measured and load none of this.
"""

from typing import Any

from parshall.outputs.base import schema_of
from parshall.outputs.generation import GenOutput
from parshall.outputs.hosts import (
    CpuOutput,
    DoctorOutput,
    ReportOutput,
    ShowOutput,
    SizesOutput,
    StoreOutput,
    VersionOutput,
)
from parshall.outputs.instruments import CaptureOutput, ConvertOutput, LiveOutput, RingsOutput, TcpOutput
from parshall.outputs.models import (
    ModelCalibrateOutput,
    ModelCompareOutput,
    ModelListOutput,
    ModelPlanOutput,
    ModelPublishedOutput,
    ModelRunOutput,
    ModelSweepOutput,
    ModelValidateOutput,
    RouterCapacityOutput,
    RouterMeasureOutput,
)
from parshall.outputs.paths import JoinOutput, PathOutput
from parshall.outputs.studies import DemoOutput, LabCheckOutput, LabListOutput, LabPublishedOutput, LabRunOutput

OUTPUTS: dict[str, Any] = {
    "--version": VersionOutput,
    "tcp": TcpOutput,
    "capture": CaptureOutput | RingsOutput,
    "path": PathOutput | JoinOutput,
    "convert": ConvertOutput,
    "model list": ModelListOutput,
    "model run": ModelRunOutput,
    "model sweep": ModelSweepOutput,
    "model compare": ModelCompareOutput,
    "model calibrate": ModelCalibrateOutput,
    "model validate": ModelValidateOutput,
    "model plan": ModelPlanOutput,
    "model published": ModelPublishedOutput,
    "gen": GenOutput,
    "router measure": RouterMeasureOutput,
    "router capacity": RouterCapacityOutput,
    "sizes": SizesOutput,
    "cpu": CpuOutput,
    "show": ShowOutput | StoreOutput,
    "live": LiveOutput,
    "report": ReportOutput,
    "lab list": LabListOutput,
    "lab run": LabRunOutput,
    "lab check": LabCheckOutput,
    "lab resume": LabRunOutput,
    "lab published": LabPublishedOutput,
    "demo": DemoOutput,
    "doctor": DoctorOutput,
}
"""The type of what each command prints with ``--json``."""


def file_name(command: str) -> str:
    """Return the name of the file with the schema of a command: ``model-run.json``."""
    return f"{command.removeprefix('--').replace(' ', '-')}.json"


def schema(command: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of what a command prints with ``--json``."""
    return schema_of(f"parshall {command} --json", OUTPUTS[command])
