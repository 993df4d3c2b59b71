"""The base of every model of the resource."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class ApiModel(BaseModel):
    """camelCase outside, snake_case inside; a field's docstring becomes its text in `kubectl explain`."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        use_attribute_docstrings=True,
        frozen=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, data: Any) -> Any:
        """As the API server does with a null that its schema does not allow."""
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def _number(value: Any) -> Any:
    """As the API server: no text and no truth value, but 2.0 is 2."""
    if isinstance(value, (bool, str)):
        raise PydanticCustomError("whole_number", "must be a whole number, without quotes")
    return value


Number = BeforeValidator(_number)
"""What a field of whole numbers has."""


def model_of(annotation: Any) -> type[ApiModel] | None:
    """The model in a field's type, also where it is optional or the entry of a list."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := model_of(part))), None)
