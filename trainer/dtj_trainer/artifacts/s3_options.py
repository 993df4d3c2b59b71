"""Options that a bucket may require of each request, from the job's variables: encryption, payer, form of URLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from dtj_trainer import contract

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

AddressingStyle = Literal["path", "virtual", "auto"]

_ALLOWED = {
    contract.ENV_S3_SSE: ("AES256", "aws:kms"),
    contract.ENV_S3_REQUEST_PAYER: ("requester",),
    contract.ENV_S3_ADDRESSING_STYLE: ("path", "virtual", "auto"),
}
_PUTS = {"PutObject", "CreateMultipartUpload", "CopyObject"}
"""The operations that create an object, and therefore set its encryption."""


@dataclass(frozen=True)
class S3Options:
    """`put` holds parameters of operations that create an object, `every` those of any operation that has the
    parameter.
    """

    put: Mapping[str, str] = field(default_factory=dict)
    every: Mapping[str, str] = field(default_factory=dict)
    addressing_style: AddressingStyle | None = None
    """None: the AWS configuration decides; without it, a custom endpoint gets `path`."""

    def add_to(self, client: S3Client) -> None:
        """Add these parameters to all requests of `client`, including the requests of boto3's own transfers."""
        if not self.put and not self.every:
            return

        def with_options(params: dict[str, Any], model: OperationModel, **_: object) -> None:
            wanted = {**self.every, **(self.put if model.name in _PUTS else {})}
            shape = model.input_shape
            known = shape.members if shape is not None else {}
            for name in wanted.keys() & known.keys():
                params.setdefault(name, wanted[name])

        client.meta.events.register("provide-client-params.s3", with_options)


def read_options(environment: Mapping[str, str]) -> S3Options:
    """Read the options from an environment. Raises ValueError with a sentence that names the variable."""
    values = {name: environment.get(name, "").strip() for name in contract.S3_SETTINGS}
    for name, allowed in _ALLOWED.items():
        if values[name] and values[name] not in allowed:
            raise ValueError(f"{name} must be {_either(allowed)}, not {values[name]!r}")
    encryption, key = values[contract.ENV_S3_SSE], values[contract.ENV_S3_SSE_KMS_KEY_ID]
    if key and encryption != "aws:kms":
        raise ValueError(f"{contract.ENV_S3_SSE_KMS_KEY_ID} needs {contract.ENV_S3_SSE} to be aws:kms")
    put = {"ServerSideEncryption": encryption, "SSEKMSKeyId": key}
    every = {"RequestPayer": values[contract.ENV_S3_REQUEST_PAYER]}
    style = values[contract.ENV_S3_ADDRESSING_STYLE] or None
    return S3Options(_given(put), _given(every), cast("AddressingStyle | None", style))


def _given(parameters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value}


def _either(words: tuple[str, ...]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
