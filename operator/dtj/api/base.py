"""The base class of the resource's models."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from dtj.api.errors import Unusable
from dtj.api.schema_errors import pattern, sentence

OBJECT_NAME = pattern(
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    "a name of lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
)


class _SnakeCase:
    """The signature that `help` shows for a model: the Python names of its fields, not pydantic's, the YAML names."""

    def __get__(self, _: object, model: type[ApiModel]) -> Signature:
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY,
                    default=Parameter.empty
                    if field.is_required()
                    else field.get_default(call_default_factory=True),
                    annotation=field.annotation,
                )
                for name, field in model.model_fields.items()
            ]
        )


class ApiModel(BaseModel):
    """Fields have camelCase names in YAML, snake_case names in Python. `kubectl explain` shows their docstrings."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        use_attribute_docstrings=True,
        frozen=True,
    )

    def __init__(self, **fields: Any) -> None:
        """Build a model. Raises Unusable with every fault; `model_validate` raises pydantic's error."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise Unusable(f"{type(self).__name__}: {_message(error)}") from None

    # With this attribute, pydantic validates a nested model without a call of `__init__`.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        type.__setattr__(cls, "__signature__", _SnakeCase())

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, data: Any) -> Any:
        """Remove each null. The API server also removes a null that the schema of the CRD does not allow."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        return {key: value for key, value in data.items() if value is not None}


def _message(error: ValidationError) -> str:
    faults = []
    for item in error.errors(include_url=False):
        wrong = "unknown field" if item["type"] == "extra_forbidden" else sentence(dict(item))
        faults.append(": ".join([".".join(map(str, item["loc"])), wrong]))
    return "; ".join(faults)


def _number(value: Any) -> Any:
    """Refuse strings and booleans as whole numbers. The API server does the same, and also takes 2.0 for 2."""
    if isinstance(value, (bool, str)):
        raise PydanticCustomError("whole_number", "must be a whole number, without quotes")
    return value


Number = BeforeValidator(_number)
"""The validator of fields with whole numbers."""


def _int_or_string(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PydanticCustomError("quantity", "must be a whole number or a string such as 500m or 4Gi")
    return value


Quantity = Annotated[
    int | str, BeforeValidator(_int_or_string), WithJsonSchema({"x-kubernetes-int-or-string": True})
]
"""A Kubernetes quantity. `dtj.api.pod_template_rules.QUANTITY` has its grammar."""


def model_of(annotation: Any) -> type[ApiModel] | None:
    """Return the model in the type of a field: M of `M`, `M | None` and `list[M]`; None for any other type."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := model_of(part))), None)
