"""What the patterns of the resource mean, in words: an expression alone tells few people what to write."""

from __future__ import annotations

from dtj.api.base import OBJECT_NAME
from dtj.api.code import CODE_URI
from dtj.api.data import DATA_URI, NODE_FOLDER
from dtj.api.managed_by import DOMAIN_PATH
from dtj.api.spec import HTTP_URL, RESOURCE_NAME, S3_URI
from dtj.api.tracking import TRACKER_URL
from dtj_trainer.contract.code_archive import DIGEST

MEANINGS = {
    S3_URI: "an address s3://bucket/prefix",
    DATA_URI: "an address s3://bucket/prefix, or file:///path of a volume that the template mounts",
    NODE_FOLDER: "the path of a folder such as /var/cache/dtj, without . and ..",
    CODE_URI: "the address of an archive, s3://bucket/key",
    DIGEST: "sha256: and 64 hex digits in lower case",
    HTTP_URL: "a URL such as https://s3.example.com",
    TRACKER_URL: "a URL such as https://mlflow.example.com, without ? and #",
    RESOURCE_NAME: "a name of a resource such as nvidia.com/gpu",
    OBJECT_NAME: "a name of lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
    DOMAIN_PATH: "a domain and a path such as kueue.x-k8s.io/multikueue",
}
"""Each pattern and what a value of it is, to be read after "must be"."""
