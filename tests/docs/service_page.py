"""docs/reference/service_file.md, made from the classes of service files: `python tests/docs/service_page.py`."""

from config_tables import Page, within
from pages import made_by, write

from hone.core.config import Config
from hone.decide.gateway.service_config import ServiceFileConfig

PAGE = "reference/service_file"
HEAD = f"""# Service files

{made_by("service_page.py")}

Every key of the file that `hone serve FILE.toml` serves, with its value, its default and its meaning.
[Serving decisions](../production/serving_decisions.md) explains the file by example, and
`hone serve FILE.toml --dry-run` checks one and prints its plan. A table in the column *value* links to its own keys;
"unset" is the absence of a value.

SIGHUP takes up changes of `service.clients`, `service.limit`, `service.max_body_bytes`, `service.deadline_s` and, of a
policy of `kind = "folder"`, `policy.path` and `policy.floor`. Everything else needs a restart.
"""


class ServicePage(Page):
    """The tables of a service file on one page."""

    def text(self) -> str:
        parts = [HEAD.strip(), "## The file", self.table_of(ServiceFileConfig), "## Tables", *self.tables()]
        return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    homes: dict[type[Config], str] = dict.fromkeys(within(ServiceFileConfig), PAGE)
    return {f"{PAGE}.md": ServicePage(PAGE, homes).text()}


if __name__ == "__main__":
    write(pages())
