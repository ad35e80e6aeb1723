"""docs/reference/service_file.md and training_service_file.md, made from the classes of these files.

`python tests/docs/service_page.py` writes them.
"""

from config_tables import Page, within
from pages import made_by, write

from hone.core.config import Config
from hone.decide.gateway.service_config import ServiceFileConfig
from hone.text.training_service.service_config import TrainingServiceConfig

PAGE, TRAINING_PAGE = "reference/service_file", "reference/training_service_file"
HEAD = f"""# Service files

{made_by("service_page.py")}

Every key of the file that `hone serve FILE.toml` serves, with its value, its default and its meaning.
[Serving decisions](../production/serving_decisions.md) explains the file by example, and
`hone serve FILE.toml --dry-run` checks one and prints its plan. A table in the column *value* links to its own keys;
"unset" is the absence of a value.

SIGHUP takes up changes of `service.clients`, `service.limit`, `service.max_body_bytes`, `service.deadline_s` and, of a
policy of `kind = "folder"`, `policy.path` and `policy.floor`. Everything else needs a restart.
"""


TRAINING_HEAD = f"""# Training service files

{made_by("service_page.py")}

Every key of the file that `hone serve training FILE.toml` serves, with its value, its default and its meaning.
[Train from your own loop](../howto/training_service.md) explains the file by example, and `--dry-run` checks one
and prints its plan. Paths are seen from the folder of the file.
"""


class ServicePage(Page):
    """The tables of a file on one page."""

    def text_of(self, file: type[Config], head: str) -> str:
        parts = [head.strip(), "## The file", self.table_of(file), "## Tables", *self.tables()]
        return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    files = ((PAGE, ServiceFileConfig, HEAD), (TRAINING_PAGE, TrainingServiceConfig, TRAINING_HEAD))
    made: dict[str, str] = {}
    for page, file, head in files:
        homes: dict[type[Config], str] = dict.fromkeys(within(file), page)
        made[f"{page}.md"] = ServicePage(page, homes).text_of(file, head)
    return made


if __name__ == "__main__":
    write(pages())
