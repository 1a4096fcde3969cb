/*! Apache ECharts 6.1.0, a part of it: line, bar, heatmap, graph and custom charts. Copyright 2017-2026 The Apache Software
 * Foundation, Apache License 2.0; with zrender (BSD 3-Clause). See LICENSE-echarts.txt and NOTICE-echarts.txt. */
import { BarChart, CustomChart, GraphChart, HeatmapChart, LineChart } from 'echarts/charts';
import { GridComponent, LegendComponent, MarkLineComponent, TooltipComponent, VisualMapContinuousComponent } from 'echarts/components';
import { getInstanceByDom, init, use } from 'echarts/core';
import { SVGRenderer } from 'echarts/renderers';

use([
  BarChart, CustomChart, GraphChart, HeatmapChart, LineChart,
  GridComponent, LegendComponent, MarkLineComponent, TooltipComponent, VisualMapContinuousComponent,
  SVGRenderer,
]);

window.echarts = { getInstanceByDom, init };
