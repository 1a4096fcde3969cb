// Heat maps and networks -> what ECharts is told.
'use strict';

const Maps = (() => {
  const { TURNED, axis, base, brief, bytes, cut, letters, named, said, tip, tooltip } = Common;
  const LETTER = 6.8;  // pixels
  const [TOP, BOTTOM] = [56, 52];  // above the cells and below them
  const WIDE = 90;  // a cell under which a name is rather cut than turned
  const RAMPS = {  // little to much; below zero, zero, above zero
    light: { one: ['#eef5fb', '#a9cfe8', '#4d9ac9', '#1b679f', '#08335c'], two: ['#b35806', '#fdd9ad', '#f7f7f7', '#a9cfe8', '#1b679f'] },
    dark: { one: ['#1e2f3e', '#1d4665', '#2673a4', '#62a9d6', '#d2e9f8'], two: ['#f1a340', '#7a4a12', '#23282e', '#1d4665', '#62a9d6'] },
  };

  function range(figure) {
    const known = figure.values.flat().filter((value) => value !== null);
    if (!known.length) return { min: 0, max: 1, ramp: 'one' };
    const [min, max] = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
    if (min < 0 && max > 0) return { min: -Math.max(-min, max), max: Math.max(-min, max), ramp: 'two' };
    return min === max ? { min: min - 1, max: max + 1, ramp: 'one' } : { min, max, ramp: 'one' };
  }

  // Of a cell's colour, whether black or white stands out on it.
  function inked(ramp, share) {
    const at = Math.min(share * (ramp.length - 1), ramp.length - 1.000001);
    const mixed = [1, 3, 5].map((k) => {
      const [a, b] = [Math.floor(at), Math.floor(at) + 1].map((i) => parseInt(ramp[i].slice(k, k + 2), 16));
      return a + (b - a) * (at - Math.floor(at));
    });
    return 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2] > 125 ? '#111' : '#fff';
  }

  function sizes(figure, width) {
    const left = Math.min(letters([...figure.rows, figure.y]) * LETTER + 14, width * 0.3);
    const cell = (width - left - 12) / figure.columns.length;
    const long = letters(figure.columns) * LETTER;
    const turned = long > cell && cell < WIDE && cell >= 15;  // narrower cells have not a name each
    return { left, cell, tall: Math.max(22, Math.min(48, cell * 0.6)), turned, below: turned ? Math.min(long, TURNED) * 0.64 : 0 };
  }

  function heatHeight(figure, width) {
    const { tall, below } = sizes(figure, width);
    return TOP + figure.rows.length * tall + BOTTOM + below;
  }

  function heat(figure, slots, look) {
    const { min, max, ramp } = range(figure);
    const colors = RAMPS[look.theme][ramp];
    const { left, cell, turned, below } = sizes(figure, look.width);
    const digits = figure.values.flat().every((value) => value === null || Number.isInteger(value)) ? 0 : 1;
    const written = (value) => (Math.abs(value) >= 1000 ? brief(value) : value.toFixed(digits));
    const cells = figure.values.flatMap((row, y) => row.flatMap((value, x) => (value === null ? [] : [{
      value: [x, y, value], label: { color: inked(colors, (value - min) / (max - min)) },
    }])));
    const fits = cell > 8 + 6.2 * letters(cells.map((one) => written(one.value[2])));
    const quiet = { type: 'category', splitLine: { show: false }, splitArea: { show: false }, axisTick: { show: false }, axisLine: { show: false } };
    return {
      ...base(look),
      grid: { left, right: 12, top: TOP, bottom: BOTTOM + below, outerBoundsMode: 'none' },
      tooltip: tooltip(look, {
        formatter: ({ value: [x, y, value] }) => tip(`${said(value)} ${figure.unit}`, [
          { name: figure.y, value: cut(figure.rows[y]) }, { name: figure.x, value: cut(figure.columns[x]) },
        ]),
      }),
      visualMap: {
        type: 'continuous', min, max, dimension: 2, orient: 'horizontal', right: 0, top: 0, padding: 0, itemWidth: 10, itemHeight: 120,
        inRange: { color: colors }, text: [max, min].map((value) => `${written(value)} ${figure.unit}`), textStyle: { color: look.muted },
        hoverLink: false,
      },
      xAxis: axis(look, {
        ...quiet, data: figure.columns, name: figure.x, nameLocation: 'middle', nameGap: 28 + below,
        axisLabel: named(turned ? Math.min(cell, 43) : cell < 15 ? cell : Math.max(cell, 44)),
      }),
      yAxis: axis(look, {
        ...quiet, data: figure.rows, inverse: true, name: cut(figure.y, 24), nameLocation: 'start', nameGap: 10, nameTextStyle: { color: look.muted, align: 'right', padding: [0, 8, 0, 0] },
        axisLabel: { interval: 'auto', width: left - 10, overflow: 'truncate', ellipsis: '…', formatter: (name) => cut(name, Math.floor((left - 10) / 6)) },
      }),
      series: [{
        type: 'heatmap', data: cells, itemStyle: { borderColor: look.back, borderWidth: 1 },
        label: { show: fits, fontSize: 11, formatter: ({ value }) => written(value[2]) },
        emphasis: { itemStyle: { borderColor: look.fore, borderWidth: 1 } },
      }],
    };
  }

  // Both directions between two agents as one link.
  function links(figure) {
    const by = new Map();
    for (const [from, to, sent] of figure.edges) {
      const back = by.get(`${to} ${from}`);
      if (back && from !== to) back.back = sent;
      else by.set(`${from} ${to}`, { from, to, sent });
    }
    return [...by.values()];
  }

  const most = (link) => Math.max(link.sent ?? 0, link.back ?? 0);

  function thickness(all) {
    const [least, highest] = [Math.min(...all.map(most)), Math.max(...all.map(most))];
    return (link) => (highest === 0 || least === highest ? 2 : 1 + (5 * most(link)) / highest);
  }

  function short(link) {
    if (link.back === undefined || link.back === link.sent) return bytes(link.sent);
    return `${bytes(link.sent)} / ${bytes(link.back)}`;
  }

  function linkTip(link) {
    const ways = [{ name: `${link.from} → ${link.to}`, value: bytes(link.sent) }];
    if (link.back !== undefined) ways.push({ name: `${link.to} → ${link.from}`, value: bytes(link.back) });
    return tip(link.back === undefined ? 'one way' : 'both ways', ways);
  }

  function agentTip(figure, agent) {
    const sum = (at) => figure.edges.filter((edge) => edge[at] === agent).reduce((total, edge) => total + (edge[2] ?? 0), 0);
    return tip(`agent ${agent}`, [{ name: 'sends', value: bytes(sum(0)) }, { name: 'hears', value: bytes(sum(1)) }]);
  }

  // A link that would run over another agent makes a bow around it.
  function bow(figure, { from, to }) {
    const [[ax, ay], [bx, by]] = [figure.places[from], figure.places[to]];
    const [dx, dy] = [bx - ax, by - ay];
    const length = dx * dx + dy * dy || 1;
    const over = figure.places.some(([x, y], agent) => {
      const along = ((x - ax) * dx + (y - ay) * dy) / length;
      return agent !== from && agent !== to && along > 0 && along < 1 && Math.hypot(x - ax - along * dx, y - ay - along * dy) < 0.06;
    });
    return over ? 0.28 : 0;
  }

  function frame(figure, width) {
    const span = (k) => {
      const all = figure.places.map((place) => place[k]);
      return [Math.min(...all) - 0.3, Math.max(...all) + 0.3];
    };
    const [x, y] = [span(0), span(1)];
    const unit = Math.min((width - 16) / (x[1] - x[0]), 380 / (y[1] - y[0]), 240);
    return { x, y, wide: unit * (x[1] - x[0]), tall: unit * (y[1] - y[0]) };
  }

  function network(figure, slots, look) {
    const { x, y, wide, tall } = frame(figure, look.width);
    const all = links(figure);
    const width = thickness(all);
    const size = figure.places.length > 40 ? 16 : 28;
    const side = (span) => ({ show: false, type: 'value', min: span[0], max: span[1] });
    return {
      ...base(look),
      grid: { left: (look.width - wide) / 2, top: 8, width: wide, height: tall, outerBoundsMode: 'none' },
      xAxis: side(x), yAxis: side(y),
      tooltip: tooltip(look, {
        formatter: ({ dataType, dataIndex }) => (dataType === 'edge' ? linkTip(all[dataIndex]) : agentTip(figure, dataIndex)),
      }),
      series: [{
        type: 'graph', coordinateSystem: 'cartesian2d', layout: 'none', symbolSize: size, edgeSymbolSize: [0, 9],
        data: figure.places.map((place, agent) => ({ name: String(agent), value: place })),
        itemStyle: { color: look.back, borderColor: look.fore, borderWidth: 1.5 },
        label: { show: true, color: look.fore, fontSize: size > 20 ? 12 : 9, formatter: ({ name }) => name },
        edgeLabel: { show: all.length <= 12, color: look.fore, fontSize: 11, backgroundColor: look.back, padding: [1, 3], formatter: ({ dataIndex }) => short(all[dataIndex]) },
        emphasis: { focus: 'adjacency', lineStyle: { width: 4 } },
        links: all.map((link) => ({
          source: String(link.from), target: String(link.to), symbol: link.back === undefined ? ['none', 'arrow'] : ['none', 'none'],
          lineStyle: { color: look.muted, opacity: 0.85, width: width(link), curveness: bow(figure, link), type: link.sent === null ? [3, 3] : 'solid' },
        })),
      }],
    };
  }

  return { heat, heatHeight, network, networkHeight: (figure, width) => frame(figure, width).tall + 16 };
})();
