// The page: draws what comes into view, and does what its buttons say.
'use strict';

(() => {
  const { element, numbers } = Common;
  const DRAW = { lines: Curves.lines, bars: Curves.bars, points: Curves.points, heat: Maps.heat, network: Maps.network };
  const HEIGHT = { lines: Curves.linesHeight, bars: Curves.barsHeight, points: Curves.pointsHeight, heat: Maps.heatHeight, network: Maps.networkHeight };
  const ROWS = 200;  // of a table, until more are asked for
  const PAPER = 680;  // pixels that fit on a sheet
  const root = document.documentElement;
  const { sections } = JSON.parse(document.getElementById('data').textContent);

  const parts = [...document.querySelectorAll('section.figure')].map((box) => ({
    box, section: sections[box.dataset.section], chosen: 0, chart: null, chartBox: box.querySelector('.chart'),
  }));
  const figureOf = (part) => part.section.figures[part.chosen];

  function look(width) {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ['back', 'raised', 'fore', 'muted', 'rule'];
    return {
      ...Object.fromEntries(names.map((name) => [name, color(name)])), width, theme: root.dataset.theme,
      font: getComputedStyle(document.body).fontFamily,
    };
  }

  function sized(part, width = part.chartBox.clientWidth) {
    const height = HEIGHT[figureOf(part).kind](figureOf(part), width);
    part.chartBox.style.height = `${Math.round(height)}px`;
    return { width, height: Math.round(height) };
  }

  function draw(part, width) {
    const size = sized(part, width);
    if (!part.chart) part.chart = echarts.init(part.chartBox, null, { renderer: 'svg', ...size });
    part.chart.resize({ ...size, silent: true });
    part.chart.setOption(DRAW[figureOf(part).kind](figureOf(part), part.section.slots, look(size.width)), { notMerge: true });
  }

  const redraw = () => parts.forEach((part) => (part.chart ? draw(part) : sized(part)));

  function choose(part, index) {
    part.chosen = index;
    const figure = figureOf(part);
    const title = part.box.querySelector('h3');
    title.textContent = figure.title;
    title.hidden = figure.title === part.box.querySelector('h2').textContent;
    part.box.querySelector('.about').textContent = figure.about;
    part.chartBox.setAttribute('aria-label', figure.title);
    draw(part);
    fill(part);
  }

  // Tables are made when they are opened.
  function fill(part, most = ROWS) {
    if (!part.box.querySelector('.numbers').open) return;
    const { columns, rows } = numbers(figureOf(part));
    const table = part.box.querySelector('.numbers table');
    const head = element('tr');
    head.append(...columns.map((name) => element('th', name)));
    const body = element('tbody');
    body.append(...rows.slice(0, most).map((cells) => {
      const row = element('tr');
      row.append(...cells.map((cell) => element('td', cell ?? '', typeof cell === 'number' ? 'number' : '')));
      return row;
    }));
    columns.forEach((_, i) => rows.some((cells) => typeof cells[i] === 'number') && head.children[i].classList.add('number'));
    table.replaceChildren(element('thead'), body);
    table.tHead.append(head);
    part.box.querySelector('.count').textContent = `${rows.length.toLocaleString('en')} rows`;
    const more = part.box.querySelector('.more');
    more.hidden = rows.length <= most;
    more.textContent = `all ${rows.length.toLocaleString('en')} rows`;
  }

  function separated({ columns, rows }) {
    const plain = (cell) => String(cell ?? '').replace(/[\t\r\n]+/g, ' ');
    return `${[columns, ...rows].map((cells) => cells.map(plain).join('\t')).join('\n')}\n`;
  }

  async function copy(button, text) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) {
      done = copyOld(text);
    }
    button.textContent = done ? 'copied' : 'could not copy';
    setTimeout(() => { button.textContent = 'copy'; }, 1500);
  }

  function copyOld(text) {  // where a browser gives a file no clipboard
    const area = element('textarea', text);
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }

  function switchTheme() {
    root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
    try { localStorage.setItem('codecl-theme', root.dataset.theme); } catch (error) { /* not remembered, then */ }
    redraw();
  }

  function printed(before) {
    const shown = root.dataset.theme;
    root.dataset.theme = before ? 'light' : printed.theme;
    printed.theme = shown;
    parts.forEach((part) => draw(part, before ? PAPER : undefined));
  }

  function watch() {
    const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      seen.unobserve(entry.target);
      draw(parts.find((part) => part.chartBox === entry.target));
    }), { rootMargin: '300px' });
    parts.forEach((part) => seen.observe(part.chartBox));
    const links = new Map([...document.querySelectorAll('.index a')].map((link) => [link.hash.slice(1), link]));
    const read = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      links.forEach((link, id) => link.toggleAttribute('aria-current', id === (entry.target.id || 'results')));  // the head has no link of its own
    }), { rootMargin: '-15% 0px -75% 0px' });
    read.observe(document.querySelector('main > header'));
    links.forEach((_, id) => read.observe(document.getElementById(id)));
  }

  parts.forEach((part) => {
    sized(part);
    part.box.querySelector('select')?.addEventListener('change', (event) => choose(part, Number(event.target.value)));
    part.box.querySelector('.numbers').addEventListener('toggle', () => fill(part));
    part.box.querySelector('.more').addEventListener('click', () => fill(part, Infinity));
    part.box.querySelector('.copy').addEventListener('click', (event) => copy(event.target, separated(numbers(figureOf(part)))));
  });
  document.getElementById('theme').addEventListener('click', switchTheme);
  let waiting = 0;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(redraw, 120); });
  addEventListener('beforeprint', () => printed(true));
  addEventListener('afterprint', () => printed(false));
  watch();
})();
