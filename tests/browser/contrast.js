// The texts whose colour is too close to what is behind them (WCAG 2: below 4.5 to 1), with their ratios.
(() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const pen = canvas.getContext('2d', {willReadFrequently: true});
  const mixed = colours => {
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    return pen.getImageData(0, 0, 1, 1).data;
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest('.unseen, title')) continue;
    const behind = [];
    for (let e = element; e; e = e.parentElement) {
      behind.unshift(getComputedStyle(e).backgroundColor);
      if (e.matches('[popover]')) break;
    }
    behind.unshift('white');
    const style = getComputedStyle(element);
    const ink = element.ownerSVGElement ? style.fill : style.color;
    const [a, b] = [mixed(behind), mixed([...behind, ink])].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)} ${element.className} ${texts.currentNode.data.trim().slice(0, 40)}`);
  }
  return faint;
})()
