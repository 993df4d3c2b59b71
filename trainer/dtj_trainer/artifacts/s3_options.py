"""Options that a bucket may require of each request, from the job's variables: encryption, payer, form of URLs."""

from __future__ import annotations

import base64
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
    contract.ENV_S3_SSE_BUCKET_KEY: ("true", "false"),
    contract.ENV_S3_REQUEST_PAYER: ("requester",),
    contract.ENV_S3_ADDRESSING_STYLE: ("path", "virtual", "auto"),
}
_PUTS = {"PutObject", "CreateMultipartUpload", "CopyObject"}
"""The operations that create an object, and therefore set its encryption."""
_CUSTOMER_KEY_BYTES = 32
"""SSE-C knows AES-256 only."""


@dataclass(frozen=True)
class S3Options:
    """`put` holds parameters of operations that create an object, `every` those of any operation that has the
    parameter.
    """

    put: Mapping[str, object] = field(default_factory=dict)
    every: Mapping[str, object] = field(default_factory=dict, repr=False)
    addressing_style: AddressingStyle | None = None
    """None: the AWS configuration decides; without it, a custom endpoint gets `path`."""

    @property
    def has_customer_key(self) -> bool:
        """Whether requests bring the key of SSE-C along, which must not be sent in clear text."""
        return "SSECustomerKey" in self.every

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
    encryption = values[contract.ENV_S3_SSE]
    for name in (contract.ENV_S3_SSE_KMS_KEY_ID, contract.ENV_S3_SSE_BUCKET_KEY):
        if values[name] and encryption != "aws:kms":
            raise ValueError(f"{name} needs {contract.ENV_S3_SSE} to be aws:kms")
    bucket_key = values[contract.ENV_S3_SSE_BUCKET_KEY]
    put = {
        "ServerSideEncryption": encryption,
        "SSEKMSKeyId": values[contract.ENV_S3_SSE_KMS_KEY_ID],
        "BucketKeyEnabled": bucket_key == "true" if bucket_key else None,
    }
    customer_key = _customer_key(values[contract.ENV_S3_SSE_CUSTOMER_KEY])
    if customer_key and encryption:
        raise ValueError(
            f"{contract.ENV_S3_SSE_CUSTOMER_KEY} can't be used with {contract.ENV_S3_SSE}: remove one of them"
        )
    every = {
        "RequestPayer": values[contract.ENV_S3_REQUEST_PAYER],
        "SSECustomerAlgorithm": "AES256" if customer_key else None,
        "SSECustomerKey": customer_key,
    }
    style = values[contract.ENV_S3_ADDRESSING_STYLE] or None
    return S3Options(_given(put), _given(every), cast("AddressingStyle | None", style))


def _customer_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = None
    if key is None or len(key) not in (0, _CUSTOMER_KEY_BYTES):
        # The sentence does not contain the value, which is a secret.
        raise ValueError(f"{contract.ENV_S3_SSE_CUSTOMER_KEY} must be {_CUSTOMER_KEY_BYTES} bytes in base64")
    return key


def _given(parameters: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in parameters.items() if value not in (None, "", b"")}


def _either(words: tuple[str, ...]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
