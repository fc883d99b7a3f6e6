"""Figures of SG-BERT: `python -m sentkit.papers.sg_bert.figures domains TABLE --name NAME --domain
NAME`.
"""

from collections.abc import Sequence

from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_value
from sentkit.papers.figure_command import main, mean_with_deviation, rows_of
from sentkit.plots.picture import Axis, Panel, Picture
from sentkit.plots.reports import LABELS, Value, grouped, series_of, value_with_interval


def domains(paths: Sequence[str], *, name: str, domain: str, value: str = "spearman") -> Picture:
    """Figure 4: a group of bars for each domain, and one bar for each encoder.

    The rows of a table have the fields --name (of the encoder), --domain and --value. Several
    scores of one encoder and domain are those of several seeds: the bar is their mean, and the line
    on it their deviation.
    """

    def score(row: Row) -> tuple[str, tuple[str, Value]]:
        return class_value(row, name), (class_value(row, domain), value_with_interval(row, value))

    scores = list(rows_of(paths).read(score))
    domain_names = tuple(dict.fromkeys(domain_of_row for _, (domain_of_row, _) in scores))
    series = []
    for encoder, encoder_scores in grouped(scores).items():
        means = {}
        for domain_name, values in grouped(encoder_scores).items():
            means[float(domain_names.index(domain_name))] = mean_with_deviation(values)
        series.append(series_of(encoder, means, "bars"))
    x_axis = Axis("domain", "", names=domain_names)
    y_axis = Axis(value, LABELS.get(value, value))
    return Picture((Panel(x_axis, y_axis, tuple(series)),), height=0.7)


if __name__ == "__main__":
    main(__name__)
