// Lines, bars and points -> what ECharts is told.
'use strict';

const Curves = (() => {
  const { axis, base, brief, bytes, cut, legend, letters, named, paint, spread, tip, tooltip, upright } = Common;
  const BANDS = 10;  // with more lines than this, none has a band
  const DOTS = 60;  // with more points than this, a line has no dots
  const LETTER = 6.8;  // pixels
  const BARS = { barGap: '12%', barCategoryGap: '32%', barMaxWidth: 44 };
  const PARTIAL = /\(partial\)$/;  // how the name of a run ends that did not come to its end
  const POWERS = '⁰¹²³⁴⁵⁶⁷⁸⁹';

  // We take logarithms ourselves: the axis then has a label at whole powers, as many as there is room for.
  const power = (k) => `10${k < 0 ? '⁻' : ''}${[...String(Math.abs(k))].map((digit) => POWERS[digit]).join('')}`;
  const usable = (figure, value) => value !== null && (!figure.log || value > 0);
  const place = (figure, value) => (usable(figure, value) ? (figure.log ? Math.log10(value) : value) : null);

  function logAxis(figure) {
    const known = figure.series.flatMap((series) => series.y.filter((value) => usable(figure, value)));
    if (!known.length) return { min: 0, max: 1, interval: 1 };
    const min = Math.floor(Math.log10(known.reduce((a, b) => Math.min(a, b))) + 1e-9);
    const interval = (max) => Math.ceil((max - min) / 6);
    let max = Math.max(min + 1, Math.ceil(Math.log10(known.reduce((a, b) => Math.max(a, b))) - 1e-9));
    max = min + Math.ceil((max - min) / interval(max)) * interval(max);
    return { min, max, interval: interval(max) };
  }

  const amount = (name) => (/\bbytes\b/i.test(name) ? (value, std) => `${bytes(value)}${std ? ` ± ${bytes(std)}` : ''}` : spread);

  // Stretches of a line of which the std is known, each with its lower and upper edge.
  function stretches(figure, series) {
    const out = [[]];
    series.x.forEach((x, i) => {
      if (!usable(figure, series.y[i]) || series.std[i] === null) return out.push([]);
      const low = series.y[i] - series.std[i];
      const lower = figure.log && low <= 0 ? series.y[i] : low;  // a log axis has no place for it
      return out[out.length - 1].push([x, place(figure, lower), place(figure, series.y[i] + series.std[i])]);
    });
    return out.filter((points) => points.length > 1);
  }

  function band(figure, series, color) {
    const found = stretches(figure, series);
    const edges = found.map((points) => [
      points[0][0], points[points.length - 1][0], Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[2])),
    ]);
    return {
      type: 'custom', name: series.name, silent: true, z: 1, clip: true, data: edges, encode: { x: [0, 1], y: [2, 3] },
      itemStyle: { color }, tooltip: { show: false },
      renderItem: (params, api) => {
        const points = found[params.dataIndex];
        const upper = points.map(([x, , high]) => api.coord([x, high]));
        const lower = points.map(([x, low]) => api.coord([x, low])).reverse();
        return { type: 'polygon', shape: { points: [...upper, ...lower] }, style: { fill: color, opacity: 0.16 } };
      },
    };
  }

  // Where tasks begin; a name as far as there is room up to the next.
  function begun(figure, look) {
    const [least, most] = extent(figure);
    const all = [...figure.marks.map(([x]) => x), most];
    const room = (i) => ((all[i + 1] - all[i]) / (most - least || 1)) * (look.width - 70) - 4;
    const fitting = (name, width) => [name, name.match(/^\d+|\d+$/)?.[0] ?? cut(name, Math.max(3, Math.floor(width / 5.6)))]
      .find((text) => text.length * 5.6 <= width) ?? '';
    return {
      type: 'line', name: '', data: [], silent: true, lineStyle: { width: 0 },
      markLine: {
        silent: true, symbol: 'none', animation: false, lineStyle: { color: look.muted, type: [2, 3], width: 1, opacity: 0.7 },
        data: figure.marks.map(([x, name], i) => ({
          xAxis: x,
          label: {
            show: fitting(name, room(i)) !== '', formatter: () => fitting(name, room(i)), position: 'end', align: 'left', distance: 3,
            color: look.muted, fontSize: 10,
          },
        })),
      },
    };
  }

  function extent(figure) {
    const all = figure.series.flatMap((series) => series.x);
    return [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)];
  }

  function linesTip(figure, slots, look) {
    const write = amount(figure.y);
    return (params) => {
      const points = params.filter((one) => one.seriesType === 'line' && one.seriesName !== '');
      const found = points.map(({ seriesIndex, dataIndex }) => ({ series: figure.series[seriesIndex], i: dataIndex }));
      if (!found.length) return '';
      const x = found[0].series.x[found[0].i];
      const head = figure.ticks.length ? figure.ticks[x] : `${figure.x} ${brief(x)}`;
      const task = figure.marks.filter(([start]) => start <= x).pop();
      const sorted = found.sort((a, b) => (b.series.y[b.i] ?? -Infinity) - (a.series.y[a.i] ?? -Infinity));
      return tip(task ? `${head} · ${task[1]}` : head, sorted.map(({ series, i }) => ({
        color: paint(look, slots[series.name]).color, name: series.name, value: write(series.y[i], series.std?.[i]),
      })));
    };
  }

  // A line that another lies on is drawn broader, so that both are seen.
  function hidden(figure, at) {
    const { x, y } = figure.series[at];
    const known = figure.series.flatMap((series) => series.y.filter((value) => value !== null));
    const near = (known.reduce((a, b) => Math.max(a, b), -Infinity) - known.reduce((a, b) => Math.min(a, b), Infinity)) / 200;
    return figure.series.slice(at + 1).some((over) => over.x.length === x.length
      && y.every((value, i) => over.x[i] === x[i] && Math.abs((over.y[i] ?? 0) - (value ?? 0)) <= (figure.log ? Math.abs(value ?? 0) / 50 : near)));
  }

  function lines(figure, slots, look) {
    const scale = figure.log ? logAxis(figure) : {};
    const room = (look.width - 70) / figure.ticks.length;
    const empty = !figure.series.some((series) => series.y.some((value) => usable(figure, value)));
    const whole = figure.series.every((series) => series.x.every(Number.isInteger));
    const drawn = figure.series.map((series, place_) => {
      const { color, dash } = paint(look, slots[series.name]);
      return {
        type: 'line', name: series.name, color, lineStyle: { width: hidden(figure, place_) ? 5 : 2, type: PARTIAL.test(series.name) ? [2, 3] : dash }, symbol: 'circle', symbolSize: 5,
        showSymbol: series.x.length <= DOTS, emphasis: { focus: 'series', lineStyle: { width: 2.5 } }, z: 3,
        data: series.x.map((x, i) => [x, place(figure, series.y[i])]),
      };
    });
    const bands = figure.series.filter((series) => series.std && figure.series.length <= BANDS)
      .map((series) => band(figure, series, paint(look, slots[series.name]).color));
    return {
      ...base(look),
      legend: legend(look, figure.series.map((series) => series.name)),
      grid: { left: 4, right: 16, top: figure.marks.length ? 80 : 66, bottom: 30 },
      tooltip: tooltip(look, { trigger: 'axis', formatter: linesTip(figure, slots, look), axisPointer: { lineStyle: { color: look.muted } } }),
      xAxis: axis(look, {
        name: figure.x, nameLocation: 'middle', nameGap: 26, splitLine: { show: false }, axisLine: { onZero: false, lineStyle: { color: look.rule } },
        ...(figure.ticks.length
          ? { type: 'category', data: figure.ticks, boundaryGap: true, axisLabel: named(room) }
          : figure.log_x ? { type: 'log', logBase: 2, min: 'dataMin', max: 'dataMax', axisLabel: { formatter: brief } }
          : { type: 'value', scale: true, max: extent(figure)[1], minInterval: whole ? 1 : 0, axisLabel: { formatter: brief } }),
      }),
      yAxis: axis(look, {
        name: empty ? `${figure.y}: nothing to show` : figure.y, ...upright, nameGap: figure.marks.length ? 26 : 12, nameTextStyle: { color: look.muted, align: 'left' },
        type: 'value', scale: true, ...scale, axisLine: { show: false }, axisTick: { show: false },
        axisLabel: { formatter: figure.log ? power : brief },
      }),
      series: [...drawn, ...bands, ...(figure.marks.length ? [begun(figure, look)] : [])],
    };
  }

  // Bars lie down where the names of the categories do not fit under them.
  const lying = (figure, width) => letters(figure.categories) * LETTER > (width - 70) / figure.categories.length;

  const positive = (figure) => figure.series.every((series) => series.y.every((value) => value === null || value >= 0));

  function whiskers(figure, series, place_, flat, look) {
    const known = series.x.map((x, i) => [x, series.y[i], series.std[i]]).filter(([, y, std]) => y !== null && std !== null);
    const floor = positive(figure) ? 0 : -Infinity;
    const at = (api, x, value) => api.coord(flat ? [value, x] : [x, value]);
    return {
      type: 'custom', name: series.name, silent: true, z: 6, tooltip: { show: false },
      data: known.map(([x, y, std]) => (flat ? [Math.max(y - std, floor), x, y + std] : [x, Math.max(y - std, floor), y + std])),
      encode: flat ? { x: [0, 2], y: 1 } : { x: 0, y: [1, 2] },
      renderItem: (params, api) => {
        const [x, y, std] = known[params.dataIndex];
        const shift = api.barLayout({ ...BARS, count: figure.series.length })[place_].offsetCenter;
        const [low, high] = [at(api, x, Math.max(y - std, floor)), at(api, x, y + std)];
        low[flat ? 1 : 0] += shift;
        high[flat ? 1 : 0] += shift;
        return { type: 'line', shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] }, style: { stroke: look.fore, lineWidth: 1.5 } };
      },
    };
  }

  function bars(figure, slots, look) {
    const flat = lying(figure, look.width);
    const write = amount(figure.y);
    const few = figure.series.length * figure.categories.length <= 12 && !figure.series.some((series) => series.std);
    const drawn = figure.series.map((series) => ({
      type: 'bar', name: series.name, color: paint(look, slots[series.name]).color, ...BARS,
      itemStyle: { borderRadius: 2 }, data: series.x.map((x, i) => (flat ? [series.y[i], x] : [x, series.y[i]])),
      label: { show: few, position: flat ? 'right' : 'top', color: look.fore, fontSize: 11, formatter: ({ dataIndex }) => write(series.y[dataIndex]) },
    }));
    const marks = figure.series.flatMap((series, i) => (series.std ? [whiskers(figure, series, i, flat, look)] : []));
    const names = axis(look, {
      type: 'category', data: figure.categories, splitLine: { show: false }, axisTick: { show: false }, inverse: flat,
      axisLabel: flat
        ? {
          hideOverlap: false, interval: 0, width: look.width * 0.34, overflow: 'break', lineHeight: 14,
          formatter: (name) => cut(name, Math.floor((2 * look.width * 0.34) / LETTER) - 4),
        }
        : named((look.width - 70) / figure.categories.length),
    });
    const values = axis(look, {
      name: figure.y, ...(flat ? { nameLocation: 'middle', nameGap: 26 } : { ...upright, nameTextStyle: { color: look.muted, align: 'left' } }),
      type: 'value', axisLine: { show: false }, axisTick: { show: false }, axisLabel: { formatter: brief },
    });
    return {
      ...base(look),
      legend: { ...legend(look, figure.series.map((series) => series.name)), itemWidth: 14, show: figure.series.length > 1 },
      grid: { left: 4, right: flat && few ? 60 : 16, top: flat ? 40 : 66, bottom: flat ? 30 : 26 },
      tooltip: tooltip(look, {
        trigger: 'item',
        formatter: ({ seriesIndex, dataIndex, color }) => {
          const series = figure.series[seriesIndex];
          return tip(figure.categories[series.x[dataIndex]], [{ color, name: series.name, value: write(series.y[dataIndex], series.std?.[dataIndex]) }]);
        },
      }),
      xAxis: flat ? values : names,
      yAxis: flat ? names : values,
      series: [...drawn, ...marks],
    };
  }

  // Points, each with its number and its spread; those that are best are filled, and a line is behind them.
  function points(figure, slots, look) {
    const drawn = figure.series.map((series, i) => {
      const { color } = paint(look, slots[series.name]);
      return {
        type: 'line', name: series.name, color, symbol: figure.best[i] ? 'circle' : 'emptyCircle', symbolSize: 10, z: 4,
        lineStyle: { width: 0 }, itemStyle: { borderWidth: 2 }, data: [[series.x[0], series.y[0]]],
        label: { show: true, formatter: String(i + 1), position: i % 2 ? 'right' : 'left', color: look.fore, fontSize: 11 },
      };
    });
    const names = figure.series.map((series) => series.name);
    const known = figure.series.filter((series) => series.std?.[0]).map((series) => [series.x[0], series.y[0] - series.std[0], series.y[0] + series.std[0], series.name]);
    const spreads = {
      type: 'custom', name: '', silent: true, z: 3, data: known, encode: { x: 0, y: [1, 2] }, tooltip: { show: false },
      renderItem: (params, api) => {
        const [x, low, high, name] = known[params.dataIndex];
        const [[x1, y1], [x2, y2]] = [api.coord([x, low]), api.coord([x, high])];
        return { type: 'line', shape: { x1, y1, x2, y2 }, style: { stroke: paint(look, slots[name]).color, lineWidth: 1.5 } };
      },
    };
    const joined = { type: 'line', name: '', silent: true, z: 2, data: figure.joined, symbol: 'none', lineStyle: { color: look.muted, width: 1 }, tooltip: { show: false } };
    const [least, most] = extent(figure);
    const xs = figure.log_x ? { type: 'log', logBase: 2, min: least / 1.05, max: most * 1.05 } : { type: 'value', scale: true };
    return {
      ...base(look),
      legend: { ...legend(look, names), formatter: (name) => `${names.indexOf(name) + 1} ${cut(name)}` },
      grid: { left: 4, right: 28, top: 66, bottom: 30 },
      tooltip: tooltip(look, {
        trigger: 'item',
        formatter: ({ seriesIndex, color }) => {
          const series = figure.series[seriesIndex];
          return series ? tip(series.name, [{ color, name: figure.y, value: spread(series.y[0], series.std?.[0]) }, { name: figure.x, value: brief(series.x[0]) }]) : '';
        },
      }),
      xAxis: axis(look, { name: figure.x, nameLocation: 'middle', nameGap: 26, splitLine: { show: false }, axisLine: { onZero: false, lineStyle: { color: look.rule } }, ...xs, axisLabel: { formatter: brief } }),
      yAxis: axis(look, { name: figure.y, ...upright, nameTextStyle: { color: look.muted, align: 'left' }, type: 'value', scale: true, axisLine: { show: false }, axisTick: { show: false }, axisLabel: { formatter: brief } }),
      series: [...drawn, spreads, joined],
    };
  }

  function barsHeight(figure, width) {
    return lying(figure, width) ? 110 + figure.categories.length * Math.max(34, figure.series.length * 18 + 12) : 360;
  }

  return { lines, linesHeight: () => 400, bars, barsHeight, points, pointsHeight: () => 400 };
})();
