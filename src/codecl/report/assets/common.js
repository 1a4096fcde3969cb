// What all figures share: colours, numbers for people, tooltips, the rows of a figure's table.
'use strict';

const Common = (() => {
  const PALETTE = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', null];  // null: the text's colour
  const DASHES = ['solid', [7, 4], [2, 3], [10, 3, 2, 3]];
  const PREFIXES = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  const LONGEST = 36;  // of a name in a legend
  const TURNED = 84;  // pixels of a turned name
  const [MANY, MOST] = [6, 14];  // lines of a tooltip: with many, names are cut; the most that it has

  function paint(look, slot) {
    const round = Math.floor(slot / PALETTE.length);
    return { color: PALETTE[slot % PALETTE.length] ?? look.fore, dash: DASHES[round % DASHES.length] };
  }

  function brief(value) {
    const size = Math.abs(value);
    if (size !== 0 && size < 1e-3) return value.toExponential();
    const [unit, letter] = PREFIXES.find(([least]) => size >= least && size >= 1e4) ?? [1, ''];
    return `${+(value / unit).toPrecision(4)}${letter}`;
  }

  function said(value) {
    if (value === null || value === undefined) return '–';
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(3);
    return value.toLocaleString('en', size >= 1000 ? { maximumFractionDigits: 1 } : { maximumSignificantDigits: 5 });
  }

  function bytes(value) {
    if (value === null) return 'not known';
    const [unit, letter] = PREFIXES.find(([least]) => value >= least) ?? [1, ''];
    return `${+(value / unit).toPrecision(3)} ${letter}B`;
  }

  const spread = (value, std) => (value !== null && std ? `${said(value)} ± ${said(std)}` : said(value));
  // From the middle, as names that begin alike often end otherwise.
  function cut(name, longest = LONGEST) {
    const half = Math.max(1, Math.floor((longest - 1) / 2));
    return name.length > longest ? `${name.slice(0, half)}…${name.slice(-half)}` : name;
  }

  const letters = (names) => Math.max(1, ...names.map((name) => name.length));

  function element(tag, text, style) {
    const out = document.createElement(tag);
    if (text !== undefined) out.textContent = text;
    if (style) out.className = style;
    return out;
  }

  // Text only: a name can never become markup.
  function tip(head, lines) {
    const box = element('div', undefined, 'tip');
    box.append(element('b', head));
    for (const line of lines.slice(0, MOST)) {
      const row = element('div');
      if (line.color) row.append(Object.assign(element('i'), { style: `background:${line.color}` }));
      row.append(element('span', lines.length > MANY ? cut(line.name) : line.name), element('data', line.value));
      box.append(row);
    }
    if (lines.length > MOST) box.append(element('div', `and ${lines.length - MOST} more`));
    return box;
  }

  const tooltip = (look, more) => ({
    confine: true, transitionDuration: 0, backgroundColor: look.raised, borderColor: look.rule, padding: [6, 10],
    textStyle: { color: look.fore, fontFamily: look.font }, ...more,
  });

  const legend = (look, names) => ({
    type: 'scroll', data: names, left: 0, right: 0, top: 0, itemWidth: 24, itemGap: 16, formatter: (name) => cut(name),
    textStyle: { color: look.fore, fontSize: 12 }, pageIconColor: look.fore, pageIconInactiveColor: look.rule,
    pageTextStyle: { color: look.muted }, inactiveColor: look.rule, animation: false,
  });

  // Axis lines and labels as quiet as they can be.
  const axis = (look, more) => ({
    axisLine: { lineStyle: { color: look.rule } }, axisTick: { lineStyle: { color: look.rule } },
    splitLine: { lineStyle: { color: look.rule, opacity: 0.6 } },
    nameTextStyle: { color: look.muted, fontSize: 12 }, ...more,
    axisLabel: { color: look.muted, fontSize: 12, hideOverlap: true, ...more.axisLabel },
  });

  // Names under an axis: as much of each as there is room for, turned where that is little.
  function named(room) {
    const short = (name, most) => (name.length > most && most < 8 && name.match(/^\d+(?= )/)?.[0]) || cut(name, most);  // `3` of `3 clothes`
    const fit = (width) => ({ width, overflow: 'truncate', ellipsis: '…', formatter: (name) => short(name, Math.floor(width / 7)) });
    if (room >= 44) return { interval: 0, hideOverlap: false, ...fit(room - 8) };
    if (room >= 15) return { interval: 0, hideOverlap: false, rotate: 40, ...fit(TURNED) };
    return { interval: 'auto', formatter: (name) => cut(name, 12) };
  }

  const upright = { nameLocation: 'end', nameGap: 12, nameTextStyle: { align: 'left' } };
  const base = (look) => ({ animation: false, textStyle: { fontFamily: look.font }, backgroundColor: 'transparent' });

  // As numbers() in figure.py has it: a row a point, everything that the figure shows.
  function numbers(figure) {
    if (figure.kind === 'heat') {
      return { columns: [figure.y, ...figure.columns], rows: figure.rows.map((name, i) => [name, ...figure.values[i]]) };
    }
    if (figure.kind === 'network') return { columns: ['sender', 'hearer', 'bytes'], rows: figure.edges };
    const wide = figure.series.some((series) => series.std);
    const names = (figure.kind === 'bars' ? figure.categories : figure.ticks) ?? [];
    const marked = figure.kind === 'points';
    const rows = figure.series.flatMap((series, place) => series.x.map((x, i) => [
      series.name, names.length ? names[Math.trunc(x)] : x, series.y[i], ...(wide ? [series.std ? series.std[i] : null] : []),
      ...(marked ? [figure.best[place] ? 'yes' : ''] : []),
    ]));
    const columns = ['series', figure.kind === 'bars' ? 'category' : figure.x, figure.y, ...(wide ? ['std'] : []), ...(marked ? ['best'] : [])];
    return { columns, rows };
  }

  return { TURNED, axis, base, brief, bytes, cut, element, legend, letters, named, numbers, paint, said, spread, tip, tooltip, upright };
})();
