# Shared by the figures: line styles and hatching that stay apart in black and white.
#
# Colours are Okabe and Ito's (2008), told apart with any colour vision; dashes, points and fill
# patterns tell the same series apart without colour.

array colours[8] = ["#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F"]
array point_types[8] = [7, 5, 9, 4, 13, 6, 11, 3]
array dash_types[8] = [1, 2, 4, 3, 5, 1, 2, 4]
array fill_patterns[8] = [3, 1, 2, 4, 5, 6, 7, 0]
do for [i = 1:8] {
    set style line i lw 2 lc rgb colours[i] dt dash_types[i] pt point_types[i] ps 0.9
}

set datafile separator comma
set datafile columnheaders
set datafile missing NaN
set encoding utf8
# Both files come from the same commands: device 1 is SVG, device 2 PNG at twice the size.
# Panels lie in rows of at most three, above a strip that holds the legend. A script sets n_legend,
# its entries, and tick_height, the room that its x ticks need.
n_columns = n_panels < 4 ? n_panels : n_panels == 4 ? 2 : 3
n_rows = (n_panels + n_columns - 1) / n_columns
legend_columns = n_columns == 1 ? 2 : 3
strip = 14 + 22 * ((n_legend + legend_columns - 1) / legend_columns)
head = n_panels > 1 ? 64.0 : 44.0
row_height = 290.0 + tick_height
width = n_columns == 1 ? 760 : 112 + 360 * n_columns
height = head + row_height * n_rows + strip
device = "if (d == 1) { set terminal svg size width,height noenhanced font 'sans,13' background '#FFFFFF'; \
set output base.'.svg' } else { set terminal pngcairo size 2*width,2*height noenhanced font 'sans,13' \
fontscale 2 linewidth 2 pointscale 2 background '#FFFFFF'; set output base.'.png' }"

# Margins of panel p (from 1) as shares of the picture.
column_of(p) = (p - 1) % n_columns
row_of(p) = (p - 1) / n_columns
panel_width = (width - 102.0) / n_columns
panel_left(p) = (92.0 + column_of(p) * panel_width) / width
panel_right(p) = (92.0 + (column_of(p) + 1) * panel_width - (n_columns > 1 ? 50 : 10)) / width
panel_top(p) = 1 - (head + row_of(p) * row_height) / height
panel_bottom(p) = 1 - (head + (row_of(p) + 1) * row_height - tick_height - 26) / height
place = "set lmargin at screen panel_left(p); set rmargin at screen panel_right(p); \
set tmargin at screen panel_top(p); set bmargin at screen panel_bottom(p); \
set title panel_names[p] offset 0,-0.7; set ylabel (column_of(p) == 0 ? y_label : '') offset 1.5,0; \
set yrange [0:y_top]; set ytics nomirror out; set border 3 lc rgb '#404040'; \
set grid ytics lc rgb '#D0D0D0' lw 1 dt 1; set key noautotitle"
# Three to six round steps up to `end`, for axes of time.
round_step(end) = rounded(end / 2.5, 10.0 ** floor(log10(end / 2.5)))
rounded(x, unit) = (x / unit >= 5 ? 5 : x / unit >= 2 ? 2 : 1) * unit
headline = "set label 1000 title at screen 0.5,(1 - 20.0 / height) center font ',15'"

# The strip: nothing but the legend.
strip_start = "unset label; unset title; unset xlabel; unset ylabel; unset tics; unset border; \
unset grid; unset logscale; set lmargin at screen 0.02; set rmargin at screen 0.98; \
set bmargin at screen 0.0; set tmargin at screen (strip / (1.0 * height)); set xrange [0:1]; \
set yrange [0:1]; set key center center horizontal maxcols legend_columns samplen 3 spacing 1.1"
